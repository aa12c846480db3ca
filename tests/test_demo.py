"""The demo's day against a scripted daemon: what is sent, and that the counts are the replies'."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from importlib.resources import files

import httpx2
import pytest

from daemon.demo import day
from daemon.demo.agent import Agent
from daemon.demo.child import free_port, running_daemon, serve_command
from daemon.demo.play import play
from daemon.demo.report import DemoFailed
from daemon.settings import resolve
from tests.e2e.processes import running

CHUNK = 256
BOUND_SECONDS = 60


@pytest.fixture(scope="module", params=["sliceable", "checkpointed"])
def report(request):
    """A whole day: 256 tokens (here bytes) a chunk, 30 ms each, so that a read can be watched."""
    script = {"chunk_seconds": 0.03}
    with running(kind=request.param, script=script, settings={"chunk_tokens": CHUNK}) as daemon:
        heard = []
        result = asyncio.run(asyncio.wait_for(play(daemon.base_url, heard.append), BOUND_SECONDS))
        assert tuple(heard) == result.turns
        yield result


def turn(report, words):
    (found,) = [each for each in report.turns if words in each.name]
    return found


def test_a_cold_open_is_read_whole(report):
    opening = report.turns[0]
    assert (opening.reused, opening.read) == (0, opening.prompt)
    assert opening.generated > 0
    assert opening.first_token_seconds > 0


def test_a_tool_result_is_read_and_what_came_before_is_reused(report):
    opening, result = report.turns[0], turn(report, "errors.py")
    assert result.reused >= opening.prompt - CHUNK
    source = (files("daemon") / "errors.py").read_text()
    assert result.read >= len(source)


def test_the_cancelled_turn_counts_as_far_as_it_was_read(report):
    cancelled = turn(report, "cancelled")
    assert cancelled.is_cancelled
    assert cancelled.first_token_seconds is None
    to_read = cancelled.prompt - cancelled.reused
    assert to_read / 4 < cancelled.read < to_read


def test_what_was_read_before_the_cancel_is_not_read_again(report):
    cancelled, again = turn(report, "cancelled"), turn(report, "sent again")
    assert again.prompt == cancelled.prompt
    assert again.read <= again.prompt - cancelled.reused - cancelled.read + CHUNK


def test_sub_agents_that_start_together_read_their_common_part_once(report):
    first, second = turn(report, "sub-agent 1"), turn(report, "sub-agent 2")
    shared = len((files("daemon") / "generation.py").read_text())
    assert shared < first.read + second.read < 2 * shared
    assert not first.is_alone


def test_undo_and_a_forgotten_session_read_little(report):
    for words in ("undo", "forgotten"):
        assert turn(report, words).read < 2 * CHUNK


def test_the_totals_are_the_sums_of_the_turns(report):
    assert report.read == sum(each.read for each in report.turns)
    assert report.everything == report.read + report.reused
    assert report.read < report.everything / 2
    as_json = json.loads(json.dumps(report.as_json()))
    assert as_json["everything"] == report.everything
    assert [each["prompt"] for each in as_json["turns"]] == [each.prompt for each in report.turns]


def test_a_machine_too_quick_to_be_watched_still_plays_the_day():
    with running() as daemon:
        result = asyncio.run(asyncio.wait_for(play(daemon.base_url, lambda turn: None), 60))
    assert len(result.turns) == 8


def answering(response):
    transport = httpx2.MockTransport(lambda request: response)
    return Agent(httpx2.AsyncClient(transport=transport, base_url="http://daemon"), "m", "s")


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx2.Response(429, json={"error": {"message": "come back"}}), "429: come back"),
        (httpx2.Response(500, text="<html>"), "500: <html>"),
        (httpx2.Response(200, text='data: {"error": {"message": "lost"}}\n\n'), "lost"),
        (httpx2.Response(200, text="data: [DONE]\n\n"), "without its usage"),
    ],
)
def test_what_goes_wrong_is_told_in_the_daemons_words(response, words):
    with pytest.raises(DemoFailed, match=words):
        asyncio.run(answering(response).ask("open", day.opening()))


def test_a_daemon_that_goes_away_ends_the_demo_with_a_sentence():
    with running() as daemon:

        def on_turn(turn):
            daemon.process.kill()
            daemon.process.wait(BOUND_SECONDS)

        with pytest.raises(DemoFailed, match="broke off"):
            asyncio.run(asyncio.wait_for(play(daemon.base_url, on_turn), BOUND_SECONDS))


def run_child(code, tmp_path):
    async def run():
        command = [sys.executable, "-c", code]
        async with running_daemon(command, free_port(), tmp_path / "logs" / "demo.log"):
            pass

    asyncio.run(asyncio.wait_for(run(), BOUND_SECONDS))


def test_a_daemon_that_does_not_start_is_shown_with_the_end_of_its_log(tmp_path):
    code = "import sys; print('line ' * 3); sys.exit('no such model')"
    with pytest.raises(DemoFailed, match=r"(?s)ended with 1.*no such model"):
        run_child(code, tmp_path)


def test_the_daemon_of_the_demo_is_stopped_when_the_demo_ends(tmp_path):
    processes = []

    async def run():
        port = free_port()
        script = {"engine": {"model": {"state": "ready"}}}
        code = (
            "import http.server, json\n"
            "class Handler(http.server.BaseHTTPRequestHandler):\n"
            "    def do_GET(self):\n"
            "        self.send_response(200)\n"
            "        self.end_headers()\n"
            f"        self.wfile.write({json.dumps(script).encode()!r})\n"
            f"http.server.HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()\n"
        )
        command = [sys.executable, "-c", code]
        async with running_daemon(command, port, tmp_path / "demo.log") as base_url:
            processes.append(base_url)
            async with httpx2.AsyncClient(base_url=base_url) as http:
                await http.get("/")
        async with httpx2.AsyncClient(base_url=base_url) as http:
            with pytest.raises(httpx2.ConnectError):
                await http.get("/")

    asyncio.run(asyncio.wait_for(run(), BOUND_SECONDS))
    assert processes


def test_a_demo_that_is_terminated_leaves_no_daemon_behind(tmp_path):
    from mlx_backend.tiny_models import write_folder

    model = write_folder("tiny-full", tmp_path / "model")
    command = [sys.executable, "-m", "daemon.cli", "demo", "--model", str(model)]
    folders = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=os.environ | folders, stdout=subprocess.DEVNULL) as demo:
        port = wait_for_port(tmp_path)
        demo.terminate()
        assert demo.wait(BOUND_SECONDS) == 130
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://127.0.0.1:{port}/health", trust_env=False)


def wait_for_port(folder):
    """The port of the demo's daemon, once it listens."""
    deadline = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < deadline:
        logs = "".join(log.read_text() for log in folder.rglob("demo.log"))
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", logs):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError("the demo's daemon does not listen")


def test_the_daemon_of_the_demo_is_mlxd_serve():
    command = serve_command("folder", 4711)
    assert command[0] == sys.executable
    assert command[3:8] == ["serve", "--model", "folder", "--port", "4711"]


def test_the_daemon_of_the_demo_asks_for_no_key_and_takes_no_socket_of_another():
    words = serve_command("folder", 4711)[4:]
    pairs = zip(words[::2], words[1::2], strict=True)
    flags = {flag[2:].replace("-", "_"): value for flag, value in pairs}
    everyday = {"MLXD_API_KEY_FILE": "/keys/mlxd", "MLXD_UNIX_SOCKET": "/run/mlxd"}
    everyday |= {"MLXD_HOST": "0.0.0.0", "MLXD_ALLOW_REMOTE": "yes"}
    settings = resolve(flags, everyday).settings
    assert (settings.api_key_file, settings.unix_socket, settings.is_remote) == (None, None, False)


def test_the_daemon_of_the_demo_begins_with_nothing_read_and_leaves_nothing_on_disk():
    words = serve_command("folder", 4711)[4:]
    assert words[words.index("--disk-cache-bytes") + 1] == "0"


def test_histories_only_grow():
    opening = day.opening()
    history = day.tool_result(day.answered(opening, "answer"), "daemon", "errors.py", "What now?")
    assert history[: len(opening)] == opening
    assert history[-1]["content"].endswith("\nWhat now?")
    assert [message["role"] for message in history] == ["system", "user", "assistant", "user"]
