"""The folder: private, made when it is needed, within its limits; what cannot be used is said."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.disk_cache import folder as folders
from daemon.disk_cache import ledger, storing
from daemon.disk_cache.folder import opened
from daemon.disk_cache.jobs import (
    Checked,
    Chore,
    Delete,
    Deleted,
    Read,
    ReadFailed,
    Scan,
    Scanned,
    Sweep,
    Swept,
    Touch,
    Write,
    WriteFailed,
    Written,
)
from tests.disk_cache.shelf import (
    MODEL,
    block,
    chain_of,
    content_of,
    do,
    done,
    files_of_at_most,
    is_refused,
    model_of,
    names_of,
    path_of,
    read,
    scanned,
    tokens_of,
    written,
)

FILE = block(tokens_of(1, 30))
WRITE = Write(FILE, content_of(FILE))
NBYTES = storing.nbytes_of(FILE, WRITE.content)
A_TEMPORARY = f"{FILE.name}.0123456789abcdef.tmp"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def left_in(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.rglob("*") if found.is_file())


def test_everything_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "caches" / "disk"
    before = os.umask(0)
    try:
        written(folder, FILE)
    finally:
        os.umask(before)
    assert [mode_of(folder), mode_of(folder / MODEL)] == [0o700, 0o700]
    assert {mode_of(found) for found in folder.rglob("*") if found.is_file()} == {0o600}


def test_looking_through_the_folder_makes_it(tmp_path: Path) -> None:
    found = done(tmp_path / "a" / "b", Swept, Sweep())
    assert (found.files, found.problem) == ((), "")
    assert 0 < found.free_bytes <= found.total_bytes
    assert mode_of(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize("where", ["", MODEL])
def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path: Path, where: str) -> None:
    written(tmp_path, FILE)
    (tmp_path / where).chmod(0o755)
    names_of(scanned(tmp_path))
    assert mode_of(tmp_path / where) == 0o700


def test_a_folder_that_vanished_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    written(folder, FILE)
    for found in sorted(folder.rglob("*"), reverse=True):
        found.rmdir() if found.is_dir() else found.unlink()
    folder.rmdir()
    assert not done(folder, ReadFailed, read(FILE)).is_there
    written(folder, FILE)


@contextmanager
def unusable(kind: str, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cache"
    match kind:
        case "a file":
            folder.write_text("mine")
        case "below a file":
            folder.write_text("mine")
            folder /= "below"
        case "a link to nowhere":
            folder.symlink_to(tmp_path / "nowhere" / "at all")
        case "another's":
            folder.mkdir()
            os.chown(folder, 12_345, -1)
        case "closed":
            folder.mkdir(mode=0)
        case "not to be made":
            folder = tmp_path / "closed" / "cache"
            folder.parent.mkdir(mode=0o500)
    yield folder


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
NOT_AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


@pytest.mark.parametrize(
    "kind",
    [
        "a file",
        "below a file",
        "a link to nowhere",
        pytest.param("another's", marks=AS_ROOT),
        pytest.param("closed", marks=NOT_AS_ROOT),
        pytest.param("not to be made", marks=NOT_AS_ROOT),
    ],
)
def test_a_folder_that_cannot_be_used_is_said_in_words(tmp_path: Path, kind: str) -> None:
    with unusable(kind, tmp_path) as folder:
        jobs = (Sweep(), WRITE, Delete(((MODEL, FILE.name),)), Touch(((MODEL, FILE.name),)))
        results = do(folder, *jobs, Read(1, FILE), Scan(MODEL))
        swept, failed, deleted, unread, unscanned = results
        assert isinstance(swept, Swept)
        assert swept.problem
        assert isinstance(failed, WriteFailed)
        assert (failed.is_full, bool(failed.why)) == (False, True)
        assert isinstance(deleted, Deleted)
        assert isinstance(unread, ReadFailed)
        assert isinstance(unscanned, Scanned)
        assert unscanned.files == ()


def test_a_link_to_a_folder_elsewhere_is_the_owners_choice(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "large")
    written(tmp_path / "cache", FILE)
    assert FILE.name in left_in(tmp_path / "large")


def test_what_was_begun_and_not_ended_is_swept_out(tmp_path: Path) -> None:
    (path,) = written(tmp_path, FILE)
    (path.parent / A_TEMPORARY).write_bytes(b"half")
    found = done(tmp_path, Swept, Sweep())
    assert (found.removed, len(found.files)) == (1, 1)
    assert A_TEMPORARY not in left_in(tmp_path)


def test_what_another_daemon_is_writing_is_left_to_it(tmp_path: Path) -> None:
    (path,) = written(tmp_path, FILE)
    temporary = path.parent / A_TEMPORARY
    with temporary.open("wb") as being_written:
        fcntl.flock(being_written, fcntl.LOCK_EX)
        assert done(tmp_path, Swept, Sweep()).removed == 0
    assert done(tmp_path, Swept, Sweep()).removed == 1


def test_what_is_being_written_is_locked_and_has_not_its_name_yet(tmp_path: Path) -> None:
    seen = list[bool]()

    def watched(descriptor: int, pieces: Sequence[Any]) -> int:
        seen.append(done(tmp_path, Swept, Sweep()).removed == 0 and not scanned(tmp_path).files)
        return os.writev(descriptor, pieces)

    with model_of(tmp_path) as model:
        storing.write(model, FILE, WRITE.content, watched)
    assert seen == [True]
    assert names_of(scanned(tmp_path)) == [FILE.name]


def test_what_is_not_of_this_cache_stays(tmp_path: Path) -> None:
    written(tmp_path, FILE)
    strangers = (
        tmp_path / ".metadata_never_index",
        tmp_path / MODEL / ".DS_Store",
        tmp_path / MODEL / "model.safetensors",
        tmp_path / MODEL / "notes.tmp",
        tmp_path / MODEL / folders.JOURNAL,
        tmp_path / "photos" / "one.safetensors",
    )
    for stranger in strangers:
        stranger.parent.mkdir(exist_ok=True)
        stranger.write_text("mine")
    (tmp_path / MODEL / f"{'0' * 40}.block.safetensors").mkdir()
    found = done(tmp_path, Swept, Sweep())
    assert (found.removed, [each.name for each in found.files]) == (0, [FILE.name])
    assert scanned(tmp_path).bad == 0
    assert all(stranger.read_text() == "mine" for stranger in strangers)


def test_the_journal_of_a_model_that_is_gone_goes_after_a_month(tmp_path: Path) -> None:
    written(tmp_path, FILE, block(FILE.tokens, identity="kept"))
    for identity in ("kept", "fresh", "old"):
        (tmp_path / identity).mkdir(exist_ok=True)
        (tmp_path / identity / folders.JOURNAL).write_text("notes")
    long_ago = time.time() - 31 * 86_400
    for identity in ("kept", "old"):
        os.utime(tmp_path / identity / folders.JOURNAL, (long_ago, long_ago))
    done(tmp_path, Swept, Sweep())
    kept = [(tmp_path / each / folders.JOURNAL).exists() for each in ("kept", "fresh", "old")]
    assert kept == [True, True, False]


def test_files_are_listed_in_the_order_of_their_use(tmp_path: Path) -> None:
    files = chain_of(tokens_of(1, 40), 10, 20, 30, 40)
    written(tmp_path, *files)
    names = [files[place].name for place in (2, 0, 3, 1)]
    do(tmp_path, Touch(tuple((MODEL, name) for name in names)))
    listed = [found.name for found in done(tmp_path, Swept, Sweep()).files]
    assert listed == names[::-1]
    used_at = {file.name: used_at for file, used_at in scanned(tmp_path).files}
    assert sorted(used_at, key=lambda name: -used_at[name]) == names
    assert abs(used_at[names[0]] - time.time()) < 60


def test_touching_a_file_that_is_gone_touches_the_others(tmp_path: Path) -> None:
    (path,) = written(tmp_path, FILE)
    os.utime(path, (1, 1))
    gone = (MODEL, "0" * 40 + ".block.safetensors")
    found = done(tmp_path, Checked, Touch((gone, (MODEL, FILE.name))))
    assert (found.lost, found.useless) == ((), (gone,)), "what somebody deleted is not damage"
    assert path.stat().st_mtime > 1


def test_deleted_files_are_gone_and_so_is_an_empty_folder(tmp_path: Path) -> None:
    one, other = block(tokens_of(1, 5)), block(tokens_of(2, 5))
    written(tmp_path, one, other)
    found = done(tmp_path, Deleted, Delete(((MODEL, one.name), (MODEL, one.name))))
    assert found.free_bytes > 0
    assert names_of(scanned(tmp_path)) == [other.name]
    done(tmp_path, Deleted, Delete(((MODEL, other.name),)))
    assert not (tmp_path / MODEL).exists()


def test_nothing_but_files_of_the_cache_is_ever_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    written(folder, FILE)
    (tmp_path / "mine").write_text("mine")
    (folder / MODEL / "mine").write_text("mine")
    names = ((MODEL, "../../mine"), (MODEL, "mine"), ("..", "mine"), (MODEL, FILE.name))
    done(folder, Deleted, Delete(names))
    assert left_in(tmp_path) == ["mine", "mine", ledger.NAME]


def test_a_floor_of_free_disk_is_kept(tmp_path: Path) -> None:
    free = done(tmp_path, Swept, Sweep()).free_bytes
    found = done(tmp_path, WriteFailed, Write(FILE, WRITE.content, floor_bytes=2 * free))
    assert (found.file, found.is_full) == (FILE, True)
    assert names_of(scanned(tmp_path)) == []
    done(tmp_path, Written, Write(FILE, WRITE.content, floor_bytes=free // 2))


def test_nothing_is_left_of_what_the_system_stopped_in_the_middle(tmp_path: Path) -> None:
    large = block(tokens_of(1, 1000))
    content = content_of(large, heads=64, width=64)
    with files_of_at_most(3 << 20):
        found = done(tmp_path, WriteFailed, Write(large, content))
    assert (found.file, bool(found.why)) == (large, True)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_nothing_is_left_of_what_the_disk_refused_in_the_middle(
    tmp_path: Path, number: int
) -> None:
    taken = [100, 50]

    def full(descriptor: int, pieces: Sequence[Any]) -> int:
        if not taken:
            raise OSError(number, os.strerror(number))
        return os.write(descriptor, b"".join(bytes(piece) for piece in pieces)[: taken.pop()])

    with model_of(tmp_path) as model, pytest.raises(OSError, match=os.strerror(number)):
        storing.write(model, FILE, WRITE.content, full)
    assert left_in(tmp_path) == []


def test_arrays_that_do_not_fit_their_type_are_not_written(tmp_path: Path) -> None:
    (array, *_) = WRITE.content.arrays
    for dtype in ("F32", "F31"):
        odd = type(WRITE.content)((type(array)(dtype, array.parts),))
        assert not done(tmp_path, WriteFailed, Write(FILE, odd)).is_full
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("identity", ["..", "", "a/b", ".hidden", "/etc", "x" * 300])
def test_no_identity_leads_out_of_the_folder(tmp_path: Path, identity: str) -> None:
    folder = tmp_path / "cache"
    file = block(FILE.tokens, identity=identity)
    done(folder, WriteFailed, Write(file, WRITE.content))
    done(folder, ReadFailed, read(file))
    assert scanned(folder, identity).files == ()
    assert left_in(tmp_path) == []


def test_what_is_written_in_a_day_is_summed_over_all_runs(tmp_path: Path) -> None:
    one, other = block(tokens_of(1, 5)), block(tokens_of(2, 9))
    first = done(tmp_path, Written, Write(one, content_of(one)))
    second = done(tmp_path, Written, Write(other, content_of(other)))
    assert first.written_today == first.nbytes > 0
    assert second.written_today == first.nbytes + second.nbytes
    do(tmp_path, Chore(lambda _: 1000))
    assert done(tmp_path, Swept, Sweep()).written_today == second.written_today + 1000


def test_each_day_begins_with_nothing_written(tmp_path: Path) -> None:
    today = date.today()
    with opened(tmp_path) as folder:
        assert ledger.add(folder, today, 500) == 500
        assert ledger.add(folder, today + timedelta(1), 30) == 30
        assert ledger.written_on(folder, today) == 0
        assert ledger.written_on(folder, today + timedelta(1)) == 30


@pytest.mark.parametrize("said", [b"", b"nonsense", b"\xff" * 40, b"2026-01-01 12\n", b"x" * 999])
def test_a_ledger_that_makes_no_sense_costs_what_it_said(tmp_path: Path, said: bytes) -> None:
    (tmp_path / ledger.NAME).write_bytes(said)
    found = done(tmp_path, Written, WRITE)
    assert found.written_today == found.nbytes
    assert done(tmp_path, Swept, Sweep()).written_today == found.nbytes


def test_a_ledger_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    folder.mkdir()
    (folder / ledger.NAME).symlink_to(elsewhere)
    done(folder, Written, WRITE)
    assert elsewhere.read_text() == "mine"


def test_a_file_of_ours_that_may_not_be_read_is_deleted(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (path,) = written(tmp_path, FILE)
    path.chmod(0)
    assert is_refused(tmp_path, FILE)
    assert path_of(tmp_path, FILE) == path
