"""Keeping a Mac awake, and what it says of its power and heat."""

import subprocess
from collections.abc import Sequence

import pytest

from launchd.power import Caffeine, PowerState, power_state

PMSET_ON_BATTERY = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             0
 networkoversleep     0
 disksleep            10
 sleep                1 (sleep prevented by caffeinate)
 lowpowermode         {}
 womp                 1
"""
HEAT = "com.apple.system.thermalpressurelevel {}\n"


class FakeCaffeinate:
    """A process that ends when it is told to, or only when it is killed."""

    def __init__(self, arguments: Sequence[str], is_stubborn: bool = False) -> None:
        self.arguments = tuple(arguments)
        self.is_stubborn = is_stubborn
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        if not self.is_stubborn:
            self.code = -15

    def kill(self) -> None:
        self.code = -9

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0)
        return self.code


class Spawned(list[FakeCaffeinate]):
    def __call__(self, arguments: Sequence[str]) -> FakeCaffeinate:
        self.append(FakeCaffeinate(arguments))
        return self[-1]


def test_it_keeps_the_machine_from_idle_sleep_on_behalf_of_a_process():
    spawned = Spawned()
    caffeine = Caffeine(spawned, 4242)
    assert not caffeine.is_kept_awake
    caffeine.start()
    caffeine.start()
    assert [each.arguments for each in spawned] == [("/usr/bin/caffeinate", "-i", "-w", "4242")]
    assert caffeine.is_kept_awake
    caffeine.end()
    caffeine.end()
    assert spawned[0].code == -15
    assert not caffeine.is_kept_awake


def test_what_somebody_else_ended_is_started_anew():
    spawned = Spawned()
    caffeine = Caffeine(spawned, 1)
    caffeine.start()
    spawned[0].code = -9
    assert not caffeine.is_kept_awake
    caffeine.start()
    assert len(spawned) == 2


def test_what_does_not_end_is_killed():
    spawned = Spawned()
    caffeine = Caffeine(spawned, 1)
    caffeine.start()
    spawned[0].is_stubborn = True
    caffeine.end()
    assert spawned[0].code == -9


def run_of(modes: str, heat: str):
    said = {"/usr/bin/pmset": modes, "/usr/bin/notifyutil": heat}

    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, 0, said[arguments[0]], "")

    return run


@pytest.mark.parametrize(
    ("mode", "level", "expected"),
    [
        ("0", "0", PowerState(False, "nominal")),
        ("1", "1", PowerState(True, "fair")),
        ("0", "2", PowerState(False, "serious")),
        ("0", "4", PowerState(False, "critical")),
    ],
)
def test_power_and_heat_are_what_the_tools_say(mode: str, level: str, expected: PowerState):
    assert power_state(run_of(PMSET_ON_BATTERY.format(mode), HEAT.format(level))) == expected


def test_what_a_machine_does_not_say_is_unknown():
    """As a desktop without low-power mode, or where a tool is missing."""
    assert power_state(run_of(" sleep 1\n", "")) == PowerState(None, "")
