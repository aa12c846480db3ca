"""What is remembered from one start of the daemon to the next, and for how long."""

import pytest

from daemon.starts import MAX_CRASHES, Memory, Starts, crash_words


class Machine:
    """A clock that all starts share, until the machine is booted again."""

    def __init__(self, folder):
        self.file = folder / "state" / "starts.json"
        self.now = 1000.0

    def starts(self, counted=True):
        return Starts(self.file, counted=counted, clock=lambda: self.now, date=lambda: 1.7e9)

    def crash(self, after_seconds=10.0):
        """A start that leaves no end behind; how many crashes it was told of."""
        self.now += after_seconds
        return self.starts().begin()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_first_start_ever_knows_of_nothing(machine):
    assert machine.starts().read() == Memory()
    assert machine.starts().begin() == 0


def test_a_start_that_left_no_end_counts_as_a_crash(machine):
    assert [machine.crash() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_three_crashes_in_five_minutes_are_too_many_and_fewer_are_not(machine):
    assert [bool(crash_words(number)) for number in range(5)] == [False] * 3 + [True] * 2
    assert MAX_CRASHES == 3
    assert [machine.crash(after_seconds=200) for _ in range(6)] == [0, 1, 2, 2, 2, 2]


def test_after_a_clean_end_the_count_begins_anew(machine):
    for _ in range(4):
        machine.crash()
    machine.starts().ended()
    assert machine.crash() == 0


def test_crashes_before_a_boot_are_forgotten(machine):
    for _ in range(4):
        machine.crash()
    machine.now = 20.0
    assert machine.starts().begin() == 1  # the one that the boot itself cut short, at most


def test_starts_in_the_foreground_are_not_counted_and_do_not_disturb_the_service(machine):
    machine.crash()
    shell = machine.starts(counted=False)
    assert shell.begin() == 0
    shell.refused("Port 1 is taken")
    shell.ended()
    assert machine.starts().read().is_open
    assert machine.crash() == 1


def test_a_refusal_is_kept_with_its_date_until_a_start_gets_further(machine):
    machine.starts().begin()
    machine.starts().refused("Port 1 is taken")
    kept = machine.starts().read()
    assert (kept.refusal, kept.refused_at) == ("Port 1 is taken", 1.7e9)
    assert machine.crash() == 0  # it is no crash
    assert machine.starts().read().refusal == "Port 1 is taken"
    machine.starts().forget_refusal()
    assert machine.starts().read().refusal == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"crashes": 3}', '{"is_open": 1, "more": 2}'])
def test_a_damaged_file_is_as_good_as_none(machine, text):
    machine.file.parent.mkdir()
    machine.file.write_text(text)
    assert machine.starts().read() == Memory()
    machine.starts().begin()
    assert machine.starts().read().is_open


def test_a_file_that_cannot_be_kept_stops_nobody(machine, caplog):
    machine.file.parent.write_text("not a folder")
    assert machine.starts().begin() == 0
    assert "nothing is remembered" in caplog.text
