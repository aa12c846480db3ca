"""One request's record, in sentences."""

from daemon.status import ReadReason
from daemon.views.why import why_view
from tests.views.examples import UUID, WIDTHS, joined, request, shown

NOW = 1_000_200.0


def why(one, width=80):
    return " ".join(shown(why_view(one, NOW), width).split())


def test_a_record_is_told_in_sentences():
    reason = ReadReason("evicted", "11,000 tokens were evicted 20 s ago by bytes.")
    text = why(request(session=UUID, arrived_at=NOW - 200, reason=reason))
    assert f"Request req_0123456789abcdef of session {UUID}, 3m 20s ago: done" in text
    assert "12,034 tokens: 11,000 reused (91%), 1,034 read." in text
    assert "55 tokens generated." in text
    assert "waited 20 ms" in text
    assert "first token came 1.2 s after it arrived; 3.5 s in all." in text
    assert "11,000 tokens were evicted 20 s ago by bytes." in text


def test_an_old_style_reason_is_shown_too():
    assert "because of that" in why(request(why_read="because of that"))


def test_where_it_goes_beyond_what_is_stored_is_said_once():
    told = ReadReason("diverged", "It left message 14.", 11_000, 14, "user")
    untold = ReadReason("continues", "All of it.", 11_000, 14, "user")
    nothing_new = ReadReason("continues", "All of it.", 12_034, 14, "user")
    assert why(request(reason=told)).count("14") == 1
    assert "begins after 11,000 tokens, in message 14 (user)." in why(request(reason=untold))
    assert "14" not in why(request(reason=nothing_new))


def test_both_sides_of_the_first_difference_are_shown():
    reason = ReadReason(
        "diverged", "Left.", stored_text="Today is the 28th\n", prompt_text="Today \x1b[2J"
    )
    text = why(request(reason=reason))
    assert r"stored 'Today is the 28th\n'" in text
    assert r"sent 'Today \x1b[2J'" in text


def test_a_request_that_waits_or_failed_says_so():
    waiting = request("waiting", first_token_seconds=None, waited_seconds=4.0, reused=0, read=0)
    assert "waiting for 4.0 s" in why(waiting)
    assert "12,034 not read" in why(waiting)
    failed = request("failed", error="a step failed", first_token_seconds=None)
    assert "It failed: a step failed" in why(failed)
    assert "no token was generated" in why(failed)


def test_nothing_is_lost_at_any_width():
    reason = ReadReason("diverged", "words " * 50, stored_text="x" * 200, prompt_text="y" * 200)
    for width in WIDTHS:
        text = joined(why_view(request(session="s" * 200, reason=reason), NOW), width)
        for each in ("s" * 200, "x" * 200, "y" * 200, "words" * 50):
            assert each in text
