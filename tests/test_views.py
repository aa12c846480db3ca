"""What a person reads, at 80 columns and in a pipe."""

import io

import pytest
from rich.console import Console

from daemon import views
from daemon.demo.report import DemoReport, Turn
from daemon.status import (
    CacheStatus,
    DaemonStatus,
    EngineStatus,
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    TotalsStatus,
)

WIDTH = 80


def shown(renderable) -> str:
    """As it comes out of a pipe."""
    pipe = io.StringIO()
    Console(file=pipe, width=WIDTH, highlight=False).print(renderable)
    return pipe.getvalue()


def request(phase="done", **changes) -> RequestStatus:
    values = {
        "id": "r1",
        "phase": phase,
        "session": "main",
        "prompt": 12_034,
        "reused": 11_000,
        "read": 1_034,
        "generated": 55,
        "waited_seconds": 0.0,
        "first_token_seconds": 1.25,
        "seconds": 3.5,
    }
    return RequestStatus(**(values | changes))


MODEL = ModelStatus(
    state="ready",
    name="SmolLM2",
    path="/models/smol",
    identity="0" * 64,
    cache_kind="checkpointed",
    cache_classes=("KVCache", "ArraysCache"),
    context_size=8192,
    weight_bytes=538_000_000,
    warnings=("the [bold]unknown[/] layer turns reuse off",),
)


def status(**engine) -> DaemonStatus:
    values = {
        "model": MODEL,
        "cache": CacheStatus(entries=3, tokens=12_000, bytes=270_000_000, max_bytes=4 * 10**9),
        "totals": TotalsStatus(requests=7, cancelled=1, prompt=100, reused=60, read=40),
        "memory": MemoryStatus(process_bytes=1_200_000_000),
    }
    return DaemonStatus("0.1.0", "abc", 4711, 8642, 3723.0, EngineStatus(**(values | engine)))


def test_status_tells_what_runs_what_is_kept_and_what_was_reused():
    text = shown(views.status_view(status()))
    assert "ready on port 8642" in text
    assert "up 1h 2m, process 4711" in text
    assert "checkpointed (KVCache, ArraysCache)" in text
    assert "3 entries, 12,000 tokens, 270 MB of 4.0 GB" in text
    assert "prompt 100 = reused 60 + read 40" in text


def test_a_warning_is_shown_as_it_is_not_as_markup():
    assert "the [bold]unknown[/] layer turns reuse off" in shown(views.status_view(status()))


def test_each_request_says_why_it_read():
    requests = (request(why_read="the prompt left the known text at token 11,000"),)
    text = shown(views.status_view(status(recent=requests)))
    assert "12,034    11,000     1,034        55     1.2 s" in text
    assert "    the prompt left the known text at token 11,000" in text


def test_a_failed_request_says_so():
    text = shown(views.status_view(status(recent=(request("failed", error="a step failed"),))))
    assert "a step failed" in text


def test_running_and_waiting_requests_come_before_past_ones():
    text = shown(
        views.status_view(
            status(
                running=(request("reading", session="now"),),
                waiting=(request("waiting", session="soon"),),
                recent=(request(session="before"),),
            )
        )
    )
    assert text.index("now") < text.index("soon") < text.index("before")


def test_only_the_last_few_past_requests_are_shown():
    past = tuple(request(session=f"session-{number}.") for number in range(30))
    text = shown(views.status_view(status(recent=past)))
    assert "session-29." in text
    assert "session-3." not in text


def test_a_model_that_failed_to_load_says_why():
    text = shown(views.status_view(status(model=ModelStatus(state="failed", error="no config"))))
    assert "failed on port 8642" in text
    assert "no config" in text


def test_nothing_is_wider_than_a_terminal():
    long = request(
        session="a-session-with-quite-a-long-name", prompt=1_234_567, why_read="so " * 60
    )
    text = shown(views.status_view(status(recent=(long,), waiting=(long,))))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "a-session-with-qui…" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (99_499, "99.5 kB"),
        (123_456, "123 kB"),
        (999_600, "1.0 MB"),
        (5_000_000_000_000, "5.0 TB"),
    ],
)
def test_sizes_have_the_unit_that_fits(number, text):
    assert views.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "0 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (100.0, "1m 40s"),
        (3599.7, "1h 0m"),
        (180_000.0, "2d 2h"),
    ],
)
def test_durations_have_the_unit_that_fits(seconds, text):
    assert views.duration(seconds) == text


def turn(name="open", *, prompt=500, reused=0, first=2.5, **changes) -> Turn:
    values = {"generated": 16, "seconds": 3.0, "answer": "Read the\n  tree."}
    read = changes.pop("read", prompt - reused)
    return Turn(name, prompt, reused, read, first_token_seconds=first, **(values | changes))


DAY = DemoReport(
    "SmolLM2",
    (
        turn(),
        turn("cancelled", prompt=2500, reused=500, read=1200, first=None, is_cancelled=True),
        turn("again", prompt=2500, reused=1700, first=8.0),
        turn("side by side", prompt=2600, reused=2500, first=0.1, is_alone=False),
    ),
    seconds=21.0,
)


def test_the_demo_shows_each_request_with_its_answer_on_one_line():
    text = shown(views.demo_turn(turn()))
    assert "500        0      500    2.5 s" in text
    assert "“Read the tree.”" in text
    assert len(shown(views.demo_turn(turn(answer="word " * 60))).splitlines()) == 2


def test_an_answer_cannot_write_to_the_terminal():
    assert "\x1b" not in shown(views.demo_turn(turn(answer="\x1b[2Jgone \x07 [red]plain[/]")))
    assert "[red]plain[/]" in shown(views.demo_turn(turn(answer="[red]plain[/]")))


def test_the_demo_sets_what_was_read_beside_what_everything_would_have_cost():
    text = shown(views.demo_summary(DAY))
    assert "8,100    4,700    2,600" in text
    assert "Read here:            2,600 tokens, 13.0 s" in text
    assert "Reading everything:   7,300 tokens, 36.5 s" in text


def test_the_rate_is_the_best_that_a_turn_reached_alone():
    assert DAY.reading_rate == 200


def test_a_day_that_read_too_little_to_be_timed_gives_no_seconds():
    day = DemoReport("tiny", (turn(prompt=50, first=0.001),), seconds=1.0)
    assert day.reading_rate is None
    assert "50 tokens\n" in "\n".join(map(str.rstrip, shown(views.demo_summary(day)).splitlines()))
