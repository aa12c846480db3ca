"""What a person reads of a running daemon, at 80 columns and in a pipe."""

from dataclasses import replace

import pytest

from daemon.status import (
    CacheStatus,
    MachineStatus,
    MemoryStatus,
    ModelStatus,
    SamplingStatus,
    TotalsStatus,
)
from daemon.views.sessions import sessions_view
from daemon.views.status import status_view
from tests.views.examples import MODEL, UUID, WIDTHS, joined, request, session, shown, status


def test_status_tells_what_runs_what_is_kept_and_what_was_reused():
    text = shown(status_view(status()))
    assert "ready on port 8642" in text
    assert "up 1h 2m, process 4711" in text
    assert "checkpointed (KVCache, ArraysCache)" in text
    assert "8,192 tokens, weights 538 MB" in text
    assert "3 of 9 entries, 2 live leaves, 12,000 tokens, 270 MB of 4.0 GB" in text
    assert "70 of 400,000 arrays; 0 hits, 0 misses" in text
    assert "12 evicted (9 by bytes, 3 by idle)" in text
    assert "60%: prompt 100 = reused 60 + read 40" in text


def test_what_was_cancelled_before_it_was_read_is_part_of_the_sum():
    text = shown(status_view(status(totals=TotalsStatus(prompt=100, reused=60, read=30))))
    assert "60%: prompt 100 = reused 60 + read 30 + 10 not read; generated" in text


def test_while_the_model_loads_nothing_is_said_of_a_cache():
    text = shown(status_view(status(model=ModelStatus("loading"), cache=CacheStatus())))
    assert "loading on port 8642" in text
    assert "prefix cache" not in text
    assert "60%" in text


def test_an_unlimited_number_of_entries_has_no_limit_to_show():
    assert "5 entries" in shown(status_view(status(cache=CacheStatus(entries=5))))
    assert "1 entry," in shown(status_view(status(cache=CacheStatus(entries=1))))


def test_every_limit_of_memory_is_beside_what_it_limits():
    memory = MemoryStatus(
        device_active_bytes=40 * 10**9,
        device_pooled_bytes=10**9,
        device_peak_bytes=50 * 10**9,
        row_bytes=8 * 10**8,
        process_bytes=45 * 10**9,
        reserved_bytes=9 * 10**8,
        budget_bytes=20 * 10**9,
        pool_limit_bytes=3 * 10**9,
        wired_bytes=38 * 10**9,
    )
    text = joined(status_view(status(memory=memory)))
    assert "process45.0GB,runningrows800MB(900MBreserved),rowsandcachewithin20.0GB" in text
    assert "40.0GBinuse,1.0GBof3.0GBpooled,50.0GBatmost,38.0GBwired" in text


def test_a_warning_is_shown_as_it_is_not_as_markup():
    assert "the [bold]unknown[/] layer turns reuse off" in shown(status_view(status()))


def test_each_request_says_why_it_read():
    requests = (request(why_read="the prompt left the known text at token 11,000"),)
    text = shown(status_view(status(recent=requests)))
    assert "done            12,034    11,000     1,034      55" in text
    assert "    1.2 s to the first token: the prompt left the known text at token 11,000" in text


def test_a_failed_request_says_so():
    assert "a step failed" in shown(
        status_view(status(recent=(request("failed", error="a step failed"),)))
    )


def test_a_request_being_read_says_how_far_it_is():
    reading = request("reading", reused=6_000, read=17, first_token_seconds=None, generated=0)
    text = shown(status_view(status(running=(reading,))))
    assert "Now: 1 running, 0 waiting" in text
    assert "reading 50%" in text


def test_running_and_waiting_requests_come_before_sessions_and_past_ones():
    view = status_view(
        status(
            running=(request("reading", session="now"),),
            waiting=(request("waiting", session="soon"),),
            sessions=(session("open-session"),),
            recent=(request(session="before"),),
        )
    )
    text = shown(view)
    order = [text.index(each) for each in ("now", "soon", "open-session", "before")]
    assert order == sorted(order)


def test_a_session_shows_its_family_its_turns_and_what_it_reused():
    one = session("sub", label="explorer", family="fam", parent=UUID, cancelled=2)
    text = shown(status_view(status(sessions=(one,))))
    assert "34 3,400,000    97%    12,345   112,089 34.0 MB    2h" in text
    assert "explorer; family fam; forked from" in text
    assert "; 2 cancelled; idle 34.0 s" in " ".join(text.split())


def test_a_family_that_is_named_after_a_member_is_not_said_twice():
    elder, child = (
        session("elder", family="elder"),
        session("child", family="elder", parent="elder"),
    )
    text = shown(sessions_view([elder, child]))
    assert "family" not in text
    assert "forked from elder" in text


def test_a_busy_session_is_not_idle():
    assert "1 request running" in shown(sessions_view([session(running=1)]))


def test_the_sessions_used_last_come_first_and_the_rest_are_counted():
    many = tuple(session(f"s{n}.", idle_seconds=float(n)) for n in range(30))
    text = shown(status_view(status(sessions=many)))
    assert "Sessions: the last 8 of 30" in text
    assert text.index("s0.") < text.index("s7.")
    assert "s8." not in text
    assert "s29." in shown(sessions_view(many))


def test_only_the_last_few_past_requests_are_shown():
    past = tuple(request(session=f"session-{number}.") for number in range(30))
    text = shown(status_view(status(recent=past)))
    assert "session-29." in text
    assert "session-3." not in text
    assert "session-29." not in shown(status_view(status(recent=past), requests=0))


def test_a_model_that_failed_to_load_says_why():
    text = shown(status_view(status(model=ModelStatus(state="failed", error="no config"))))
    assert "failed on port 8642" in text
    assert "no config" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(width):
    name = "session-" + "0123456789" * 10
    why = "so many words " * 20
    long = request(session=name, prompt=9_234_567, reused=9_123_456, read=9_111_111, why_read=why)
    totals = TotalsStatus(requests=10**9, prompt=10**12, reused=10**12, read=10**9)
    view = status_view(
        status(
            recent=(long,),
            waiting=(long,),
            totals=totals,
            sessions=(session(name, label=name + "l", parent=name + "p"),),
            model=ModelStatus("ready", name="m" * 300, path="/p" * 150),
        )
    )
    text = shown(view, width)
    assert "…" not in text
    for number in ("9,234,567", "9,123,456", "9,111,111"):
        assert text.count(number) == 2
    together = joined(view, width)
    assert together.count("".join(why.split())) == 2
    assert {"m" * 300, "/p" * 150, name + "l", name + "p"} <= {
        each for each in ("m" * 300, "/p" * 150, name + "l", name + "p") if each in together
    }


def test_a_name_cannot_write_to_the_terminal():
    one = session("\x1b[2Jgone", label="[red]plain[/]")
    text = shown(sessions_view([one]))
    assert "\x1b" not in text
    assert "[red]plain[/]" in text


def test_no_sessions_are_said_in_words():
    assert "No sessions." in shown(sessions_view([]))


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (SamplingStatus(1.0), "temperature 1 where a request is silent: the API's default"),
        (
            SamplingStatus(0.7, top_p=0.8, top_k=20, min_p=0.05, is_recommended=True),
            "temperature 0.7, top-p 0.8, top-k 20, min-p 0.05 where a request is silent: "
            "as the model's makers recommend",
        ),
        (
            SamplingStatus(0.5, repetition_penalty=1.05, presence_penalty=1.5),
            "temperature 0.5, presence penalty 1.5, repetition penalty 1.05 where",
        ),
    ],
)
def test_status_tells_how_a_silent_request_is_sampled(sampling: SamplingStatus, words: str) -> None:
    model = replace(MODEL, sampling=sampling)
    assert "".join(words.split()) in joined(status_view(status(model=model)))


def test_an_answer_that_was_ended_for_repeating_itself_is_not_just_done() -> None:
    text = shown(status_view(status(recent=(request(finish="repetition"), request(finish="stop")))))
    assert text.count("repetition") == text.count("done") == 1


def test_of_the_machine_only_what_is_out_of_the_ordinary_is_said() -> None:
    usual = MachineStatus("normal", is_low_power=False, heat="fair")
    assert "machine" not in joined(status_view(replace(status(), machine=usual)))
    strained = MachineStatus("critical", 2_000_000_000, True, "serious", is_kept_awake=True)
    said = shown(status_view(replace(status(), machine=strained)), 200)
    for words in ("low-power", "heat serious", "short (critical)", "gave back 2.0 GB", "awake"):
        assert words in said


def test_a_model_that_is_unloaded_is_no_fault_and_others_are_named():
    other = replace(MODEL, name="other-model", key="o", state="failed", error="cut short")
    idle = replace(MODEL, state="unloaded")
    text = shown(status_view(status(model=idle, models=(idle, other))))
    assert "unloaded on port 8642" in text
    assert "the next request loads it again" in text
    assert "prefix cache" in text
    assert "other-model, failed, weights 538 MB: cut short" in text
    assert "also" not in shown(status_view(status(models=(MODEL,))))


def test_what_was_refused_is_told_by_its_status():
    totals = TotalsStatus(refused=3, refused_by_status={"429": 1, "400": 2})
    assert "3 refused (1 by 429, 2 by 400)" in shown(status_view(status(totals=totals)))
    assert "0 refused" in shown(status_view(status(totals=TotalsStatus())))
