"""One frame of `mlxd top`."""

from dataclasses import replace

import pytest

from daemon.status import TotalsStatus
from daemon.views.top import Rates, top_view
from tests.views.examples import WIDTHS, request, session, shown, status


def at(uptime_seconds, totals, running=()):
    return replace(status(totals=totals, running=running), uptime_seconds=uptime_seconds)


def test_rates_count_what_ended_and_what_runs():
    before = at(10.0, TotalsStatus(read=1_000, generated=50), (request(read=200, generated=8),))
    after = at(12.0, TotalsStatus(read=1_300, generated=60), (request(read=500, generated=20),))
    assert Rates.between(before, after) == Rates(read=300, generated=11)


def test_a_daemon_that_was_started_anew_has_no_rates_yet():
    before = at(10.0, TotalsStatus(read=1_000))
    assert Rates.between(before, replace(before, instance="new", uptime_seconds=11.0)) is None
    assert Rates.between(before, before) is None


def test_a_frame_shows_what_runs_what_is_kept_and_how_fast():
    text = shown(top_view(status(running=(request("decoding"),)), Rates(512.4, 23)))
    assert "ready on port 8642" in text
    assert "270 MB of 4.0 GB" in text
    assert "reads 512 tokens/s, generates 23 tokens/s" in text
    assert "Now: 1 running, 0 waiting" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_new_stands_above_what_is_old(width):
    recent = tuple(request(session=f"r{number}.") for number in range(100))
    sessions = tuple(session(f"s{number}.", idle_seconds=float(number)) for number in range(9))
    text = shown(top_view(status(recent=recent, sessions=sessions)), width)
    assert "Sessions: the last 4 of 9" in text
    order = [text.index(each) for each in ("s0.", "s3.", "r99.", "r98.")]
    assert order == sorted(order)
    assert "r1." not in text
