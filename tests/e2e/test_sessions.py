"""The settings of sessions and policies, in a daemon that runs: they arrive where they count."""

from tests.e2e.processes import Daemon, running
from tests.fakes import filler

HEAD = filler(400, 1)


def cached(daemon: Daemon, text: str, **fields: object) -> int:
    answer = daemon.chat(text, max_tokens=4, **fields)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def open_sessions(daemon: Daemon) -> list[str]:
    return [session["id"] for session in daemon.http.get("/v1/sessions").json()["data"]]


def test_sessions_are_limited_in_number_and_time() -> None:
    settings = {"max_sessions": 1, "session_idle_seconds": 1, "prefix_cache_entries": 0}
    with running(settings=settings) as daemon:
        assert cached(daemon, filler(400, 2), session_id="a") == 0
        assert cached(daemon, HEAD, session_id="b") < 50
        assert open_sessions(daemon) == ["b"]
        assert cached(daemon, HEAD, session_id="b") > 400
        daemon.wait_until(lambda engine: not engine["sessions"])
        assert cached(daemon, HEAD) < 50


def test_under_initial_a_later_turn_goes_with_its_session() -> None:
    settings = {"max_sessions": 1, "prefix_checkpoint_prompt_end": "initial"}
    with running(settings=settings) as daemon:
        cached(daemon, HEAD, session_id="a")
        cached(daemon, HEAD + filler(300, 2), session_id="a")
        cached(daemon, "something else", session_id="b")
        assert 400 < cached(daemon, HEAD + filler(300, 2), session_id="c") < 500


def test_a_function_of_ones_own_decides_what_is_kept() -> None:
    settings = {"max_sessions": 1, "prefix_checkpoint_policy": "tests.e2e.test_sessions:at_300"}
    with running(settings=settings) as daemon:
        cached(daemon, HEAD, session_id="a")
        cached(daemon, "something else", session_id="b")
        assert cached(daemon, HEAD, session_id="c") == 300


def at_300(start: int, prompt: object, opening: bool, marks: object) -> list[int]:
    return [300]
