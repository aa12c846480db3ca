"""Memory pressure: what is registered with the kernel, and what comes back."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from launchd.pressure import Pressure, PressureWatch, watch_pressure

ADD = 0x21


@dataclass
class FakeQueue:
    """A `select.kqueue`: `told` are the levels that the kernel reports next."""

    told: list[int] = field(default_factory=list)
    registered: list[Any] = field(default_factory=list)
    is_closed: bool = False

    def control(self, changes, max_events, timeout=None):
        assert timeout == 0, "it would wait"
        self.registered += changes or ()
        told, self.told = self.told[:max_events], self.told[max_events:]
        return [SimpleNamespace(fflags=level) for level in told]

    def fileno(self) -> int:
        return 7

    def close(self) -> None:
        self.is_closed = True


def event(ident: int, **fields: Any) -> dict[str, Any]:
    return {"ident": ident, **fields}


def test_every_level_is_asked_for_by_the_numbers_of_the_kernels_header():
    queue = FakeQueue()
    PressureWatch(queue, event, ADD)
    assert queue.registered == [{"ident": 0, "filter": -14, "flags": ADD, "fflags": 7}]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], None),
        ([1], Pressure.NORMAL),
        ([2], Pressure.WARNING),
        ([4], Pressure.CRITICAL),
        ([2, 4], Pressure.CRITICAL),
        ([4, 1], Pressure.NORMAL),
    ],
)
def test_the_latest_level_counts(told: list[int], expected: Pressure | None):
    queue = FakeQueue()
    watch = PressureWatch(queue, event, ADD)
    queue.told = told
    assert watch.read() == expected
    assert watch.read() is None
    watch.close()
    assert queue.is_closed


@pytest.mark.skipif(sys.platform != "darwin", reason="asks the kernel of macOS")
def test_this_mac_takes_the_registration():
    watch = watch_pressure()
    assert watch.fileno() >= 0
    watch.read()
    watch.close()


@pytest.mark.skipif(sys.platform == "darwin", reason="for other systems")
def test_elsewhere_there_is_none():
    with pytest.raises(OSError, match="only macOS"):
        watch_pressure()
