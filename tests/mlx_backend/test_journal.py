"""Notes outlive the process that made them; whatever happens to their file costs those notes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_backend.journal import FILE_NAME, Journal, Journals

IDENTITY = "a" * 64


class Behind:
    """Does what is to be done behind somebody's back when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[int], int]] = []

    def __call__(self, write: Callable[[int], int]) -> None:
        self.due.append(write)

    def happen(self, most_bytes: int = 1 << 30) -> int:
        due, self.due = self.due, []
        return sum(write(most_bytes) for write in due)


class Desk:
    """A journal in a folder, and those that later processes open."""

    def __init__(self, folder: Path, kept_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.file = folder / FILE_NAME
        self.behind = Behind()
        self.kept_bytes = kept_bytes
        self.journal = self.opened()

    def opened(self, identity: str = IDENTITY) -> Journal:
        return Journal(self.folder, identity, self.behind, self.kept_bytes)

    def note(self, *numbers: int, size: int = 10) -> None:
        for number in numbers:
            self.journal.add("kind", number, lambda: {"said": "é\n" * size})
        self.behind.happen()

    def names(self, identity: str = IDENTITY) -> list[int]:
        return [note.name for note in self.opened(identity).all()]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "cache" / IDENTITY)


def test_what_was_noted_is_there_in_the_next_process_in_its_order(desk: Desk) -> None:
    assert desk.names() == []
    desk.note(3, 1, 2)
    found = list(desk.opened().all())
    assert [note.name for note in found] == [3, 1, 2]
    assert found[0].kind == "kind"
    assert found[0].value == {"said": "é\n" * 10}


def test_nothing_touches_the_disk_until_the_writer_comes_to_it(desk: Desk) -> None:
    desk.journal.add("kind", 1, lambda: {})
    desk.journal.add("kind", 2, lambda: {})
    assert not desk.folder.exists()
    assert len(desk.behind.due) == 1
    assert desk.behind.happen() == desk.file.stat().st_size


def test_a_model_that_is_loaded_again_at_once_finds_what_is_not_written_yet(
    tmp_path: Path,
) -> None:
    behind = Behind()
    journals = Journals(tmp_path, behind)
    for number in (1, 2):
        journals.of(IDENTITY).add("kind", number, lambda: {})
        assert [note.name for note in journals.of(IDENTITY).all()] == [*range(1, number + 1)]
        behind.happen()


def test_what_comes_too_late_for_the_writer_is_written_in_the_end(tmp_path: Path) -> None:
    journals = Journals(tmp_path, Behind())
    journals.of(IDENTITY).add("kind", 1, lambda: {})
    journals.write_rest()
    assert [note.name for note in Journals(tmp_path, Behind()).of(IDENTITY).all()] == [1]


def test_in_the_end_nothing_is_written_where_no_more_was_to_be(tmp_path: Path) -> None:
    behind = Behind()
    journals = Journals(tmp_path, behind)
    journals.of(IDENTITY).add("kind", 1, lambda: {})
    assert behind.happen(most_bytes=0) == 0
    journals.of(IDENTITY).add("kind", 2, lambda: {})
    journals.write_rest()
    assert not list(tmp_path.iterdir())


def test_a_first_start_is_nothing_to_warn_of(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    assert desk.names() == []
    desk.folder.mkdir(parents=True)
    assert desk.names() == []
    assert not caplog.records
    desk.file.mkdir()
    assert desk.names() == []
    assert len(caplog.records) == 1


def test_nobody_else_can_read_them(desk: Desk) -> None:
    desk.note(1)
    assert stat.S_IMODE(desk.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.folder.stat().st_mode) == 0o700


def test_what_is_noted_already_is_not_written_again(desk: Desk) -> None:
    desk.note(1, 2, 1)
    desk.note(2)
    assert desk.names() == [1, 2]
    later = desk.opened()
    assert [note.name for note in later.all()] == [1, 2]
    later.add("kind", 2, lambda: {})
    assert desk.behind.due == []


def test_a_file_that_grew_too_large_keeps_its_newer_half_and_what_is_used_comes_back(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path / IDENTITY, kept_bytes=4000)
    for number in range(200):
        desk.note(number, 7)  # the seventh is used all the time
        assert desk.file.stat().st_size <= 8200
    names = desk.names()
    assert names[-1] in (199, 7)
    assert 0 not in names
    assert 7 in names
    assert len(set(names)) > 20
    assert stat.S_IMODE(desk.file.stat().st_mode) == 0o600
    assert [path.name for path in desk.folder.iterdir()] == [FILE_NAME]


def test_a_file_that_may_not_be_cut_does_not_grow_either(tmp_path: Path) -> None:
    desk = Desk(tmp_path / IDENTITY, kept_bytes=1000)
    for number in range(40):
        desk.journal.add("kind", number, lambda: {"said": "é" * 20})
        assert desk.behind.happen(most_bytes=900) <= 900
        assert desk.file.stat().st_size <= 2000
    assert 0 in desk.names()
    assert 39 not in desk.names()
    desk.note(39)
    assert desk.names()[-1] == 39
    assert desk.file.stat().st_size <= 1000


def test_a_line_cut_anywhere_costs_itself_only_and_the_next_one_is_whole(desk: Desk) -> None:
    desk.note(1, 2)
    whole = desk.file.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole)):
        desk.file.write_bytes(whole[:length])
        ends = ((1, first - 1), (2, len(whole) - 1))  # a line may lack its end
        known = [number for number, end in ends if length >= end]
        assert desk.names() == known
        desk.journal = desk.opened()
        desk.note(9)
        assert desk.names() == [*known, 9]


def test_a_byte_changed_anywhere_costs_no_more_than_two_notes(desk: Desk) -> None:
    desk.note(1, 2, 3)
    whole = desk.file.read_bytes()
    for place in range(len(whole)):
        for change in (1, 2, 128):
            damaged = bytearray(whole)
            damaged[place] ^= change
            desk.file.write_bytes(damaged)
            found = list(desk.opened().all())
            assert len(found) >= 1
            assert all(note.value == {"said": "é\n" * 10} for note in found)
            assert [note.name for note in found] != [1, 2, 3]


def test_another_models_notes_are_nobodys(desk: Desk) -> None:
    desk.note(1)
    assert desk.names("b" * 64) == []


@pytest.mark.parametrize("other", [b"", b"\n\n\n", b"\0" * 5000, b"00000000 {}\n", b"[1]\n" * 9])
def test_a_file_of_something_else_is_no_notes(desk: Desk, other: bytes) -> None:
    desk.folder.mkdir(parents=True)
    desk.file.write_bytes(other)
    assert desk.names() == []
    desk.note(1)
    assert desk.names() == [1]


def test_a_link_is_not_followed_and_a_pipe_not_waited_for(desk: Desk, tmp_path: Path) -> None:
    desk.note(1)
    desk.file.rename(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    desk.file.symlink_to(tmp_path / "elsewhere")
    assert desk.names() == []
    desk.note(2)
    assert (tmp_path / "elsewhere").read_bytes() == before
    desk.file.unlink()
    os.mkfifo(desk.file)
    assert desk.names() == []
    desk.note(3)
    desk.file.unlink()
    desk.note(3)
    assert desk.names() == [3]


def test_a_disk_that_takes_nothing_costs_the_notes_until_they_are_used_again(desk: Desk) -> None:
    desk.folder.parent.mkdir()
    desk.folder.write_bytes(b"in the way")
    desk.note(1, 2)
    desk.folder.unlink()
    desk.note(2, 3)
    assert desk.names() == [2, 3]


def test_where_no_more_may_be_written_nothing_is(desk: Desk) -> None:
    desk.note(1)
    desk.journal.add("kind", 2, lambda: {})
    assert desk.behind.happen(most_bytes=10) == 0
    desk.note(3)
    assert desk.names() == [1, 3]


def test_a_file_that_was_taken_away_begins_again_with_what_is_used(desk: Desk) -> None:
    desk.note(1, 2)
    desk.file.unlink()
    desk.note(3)
    desk.note(2)
    assert desk.names() == [3, 2]
