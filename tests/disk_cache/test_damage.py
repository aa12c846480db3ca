"""A file that is not whole, not the one it should be or none at all: a miss, deleted, no more."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.disk_cache.files import StoredFile
from daemon.disk_cache.jobs import Read, ReadDone, ReadFailed, Sweep, Swept, Write
from tests.disk_cache.shelf import (
    MODEL,
    block,
    chain_of,
    checkpoint,
    content_of,
    do,
    done,
    forged,
    is_refused,
    names_of,
    path_of,
    read,
    scanned,
    tokens_of,
    written,
)

MANY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def file() -> StoredFile:
    return block(tokens_of(1, 6))


@pytest.fixture
def path(tmp_path: Path, file: StoredFile) -> Path:
    """Where it is, whole."""
    return written(tmp_path, file)[0]


@pytest.fixture
def whole(path: Path) -> bytes:
    return path.read_bytes()


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """A file's header and what follows it."""
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return json.loads(whole[8:end]), whole[end:]


def test_every_flipped_byte_is_found(tmp_path: Path, file: StoredFile, path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        assert is_refused(tmp_path, file), place


@MANY
@given(st.data())
def test_any_few_changed_bytes_are_found(
    tmp_path: Path, file: StoredFile, path: Path, whole: bytes, data: st.DataObject
) -> None:
    changed = bytearray(whole)
    start = data.draw(st.integers(0, len(whole) - 1))
    for place in range(start, min(start + 4, len(whole))):
        changed[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    assert is_refused(tmp_path, file)


def test_a_file_cut_short_anywhere_is_found(tmp_path: Path, file: StoredFile, path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert is_refused(tmp_path, file), length


def test_a_file_cut_short_anywhere_is_found_without_reading_it_all(
    tmp_path: Path, path: Path
) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert scanned(tmp_path).bad == 1, length
        assert not path.exists()


def test_a_file_with_something_behind_it_is_found(
    tmp_path: Path, file: StoredFile, path: Path
) -> None:
    path.write_bytes(path.read_bytes() + b"more")
    assert is_refused(tmp_path, file)


def test_nobody_is_warned_of_a_file_that_is_gone(
    tmp_path: Path, file: StoredFile, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    found = done(tmp_path, ReadFailed, Read(3, file))
    assert (found.ticket, found.file, found.is_there) == (3, file, False)
    assert not caplog.records


def test_another_files_bytes_under_its_name_are_found(tmp_path: Path) -> None:
    one, other = block(tokens_of(1, 6)), block(tokens_of(2, 6))
    written(tmp_path, one, other)
    path_of(tmp_path, other).rename(path_of(tmp_path, one))
    assert is_refused(tmp_path, one)


def test_another_models_file_under_its_name_is_found(tmp_path: Path, file: StoredFile) -> None:
    other = block(file.tokens, identity="b" * 64)
    written(tmp_path, file, other)
    (tmp_path / MODEL / file.name).unlink()
    path_of(tmp_path, other).rename(tmp_path / MODEL / other.name)
    same_name = StoredFile(MODEL, other.kind, other.key, "", 0, 6, file.tokens)
    assert is_refused(tmp_path, same_name)


def test_a_file_of_other_tokens_than_are_known_of_it_is_found(
    tmp_path: Path, file: StoredFile, path: Path
) -> None:
    others = StoredFile(MODEL, file.kind, file.key, "", 0, 6, tokens_of(9, 6))
    assert is_refused(tmp_path, others)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "2"},
        {"start": "1"},
        {"end": "5"},
        {"end": "2000"},
        {"start": "-1", "end": "5"},
        {"bytes": "8"},
        {"bytes": "1000000000000"},
        {"kind": "checkpoint"},
        {"kind": "picture"},
        {"key": "b" * 40},
        {"identity": "c" * 64},
        {"parent": "d" * 40},
        {"end": "9" * 5000},
        {"described": 5},
        {"end": 6},
    ],
)
def test_a_description_that_is_wrong_is_found_whatever_its_checksum_says(
    tmp_path: Path, file: StoredFile, path: Path, change: dict[str, Any]
) -> None:
    header, data = header_of(path)
    header["__metadata__"] |= change
    path.write_bytes(forged(_compact(header), data))
    assert is_refused(tmp_path, file)


@pytest.mark.parametrize(
    "change",
    [
        {"0": {"dtype": "F31", "shape": [1, 2, 6, 8], "data_offsets": [48, 240]}},
        {"0": {"dtype": "BF16", "shape": [1, 2, 6, 9], "data_offsets": [48, 240]}},
        {"0": {"dtype": "BF16", "shape": [-1, -2, 6, 8], "data_offsets": [48, 240]}},
        {"0": {"dtype": "BF16", "shape": [1, 2, 6, 8], "data_offsets": [0, 192]}},
        {"0": {"dtype": "BF16", "shape": 96, "data_offsets": [48, 240]}},
        {"0": {"dtype": "BF16"}},
        {"0": None},
        {"1": None},
        {"1": None, "0": {"dtype": "F32", "shape": [1, 1, 6, 1], "data_offsets": [24, 48]}},
        {"00": {"dtype": "U8", "shape": [0], "data_offsets": [240, 240]}},
        {"2": {"dtype": "U8", "shape": [0], "data_offsets": [10, 10]}},
        {"x": {"dtype": "U8", "shape": [0], "data_offsets": [240, 240]}},
        {"7": {"dtype": "U8", "shape": [0], "data_offsets": [240, 240]}},
        {"tokens": {"dtype": "I32", "shape": [5], "data_offsets": [0, 20]}},
    ],
)
def test_arrays_that_do_not_fit_are_found_whatever_the_checksum_says(
    tmp_path: Path, file: StoredFile, path: Path, change: dict[str, Any]
) -> None:
    header, data = header_of(path)
    told = {name: entry for name, entry in (header | change).items() if entry is not None}
    path.write_bytes(forged(_compact(told), data))
    assert is_refused(tmp_path, file)


def _compact(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


START = b'{"__metadata__":{"checksum":"00000000"'


@MANY
@given(
    st.one_of(st.binary(max_size=300), st.text('{}[]":,01e-.xtfn', max_size=300).map(str.encode))
)
def test_nonsense_in_a_file_is_only_a_bad_file(
    tmp_path: Path, file: StoredFile, path: Path, nonsense: bytes
) -> None:
    for whole in (nonsense, forged(START + nonsense, b""), forged(nonsense.ljust(99), b"")):
        path.write_bytes(whole)
        assert scanned(tmp_path).bad == 1
        path.write_bytes(whole)
        assert is_refused(tmp_path, file)


def test_a_header_of_a_million_brackets_is_only_a_bad_file(
    tmp_path: Path, file: StoredFile, path: Path
) -> None:
    path.write_bytes(forged(START + b',"format":' + b"[" * 1_000_000, b""))
    assert is_refused(tmp_path, file)


def test_a_file_far_larger_than_it_may_be_is_not_read(
    tmp_path: Path, file: StoredFile, path: Path
) -> None:
    os.truncate(path, 1 << 40)  # takes no room
    assert is_refused(tmp_path, file)


def test_a_header_far_longer_than_it_may_be_is_not_read(tmp_path: Path, path: Path) -> None:
    path.write_bytes((1 << 60).to_bytes(8, "little") + path.read_bytes()[8:])
    os.truncate(path, 1 << 40)
    assert scanned(tmp_path).bad == 1


def test_a_link_is_deleted_and_not_followed(tmp_path: Path, file: StoredFile, path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert is_refused(tmp_path, file)
    path.symlink_to(elsewhere)
    assert (scanned(tmp_path).bad, path.is_symlink()) == (1, False)
    path.symlink_to(elsewhere)
    assert done(tmp_path, Swept, Sweep()).removed == 1
    assert not path.is_symlink()
    assert elsewhere.exists()


def test_writing_replaces_a_link_and_leaves_what_it_leads_to(
    tmp_path: Path, file: StoredFile, path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    path.unlink()
    path.symlink_to(elsewhere)
    written(tmp_path, file)
    assert not path.is_symlink()
    assert elsewhere.read_text() == "mine"


def test_nobody_waits_for_what_is_no_file(tmp_path: Path, file: StoredFile, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    assert is_refused(tmp_path, file)


def test_a_files_folder_that_is_a_link_is_not_followed(tmp_path: Path, file: StoredFile) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    written(elsewhere, file)
    folder.mkdir()
    (folder / MODEL).symlink_to(elsewhere / MODEL)
    (failed,) = do(folder, Write(block(tokens_of(2, 6)), content_of(file)))
    assert not isinstance(failed, ReadDone)
    assert isinstance(do(folder, read(file))[0], ReadFailed)
    assert names_of(scanned(folder)) == []
    assert done(folder, Swept, Sweep()).files == ()
    assert [found.name for found in (elsewhere / MODEL).iterdir()] == [file.name]


def test_files_of_another_version_are_swept_out(tmp_path: Path, file: StoredFile) -> None:
    footing, upper = chain_of(tokens_of(4, 20), 10, 20)
    older, newer = written(tmp_path, footing, upper)
    header, data = header_of(older)
    header["__metadata__"]["format"] = "0"
    older.write_bytes(forged(_compact(header), data))
    found = done(tmp_path, Swept, Sweep())
    assert (found.removed, [each.name for each in found.files]) == (1, [newer.name])
    assert found.bad == 0, "it was right in its time"
    assert not older.exists()


@pytest.mark.parametrize("length", [0, 8, 40, 58])
def test_a_torn_file_counts_and_is_told_of_whoever_finds_it(
    tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    footing, upper = chain_of(tokens_of(4, 20), 10, 20)
    torn = written(tmp_path, footing, upper)[0]
    os.truncate(torn, length)
    found = done(tmp_path, Swept, Sweep())
    assert (found.removed, found.bad) == (1, 1)
    assert [each.name for each in found.files] == [upper.name]
    assert torn.name in caplog.text
    assert scanned(tmp_path).bad == 0, "it is counted twice"


def test_a_checkpoint_is_verified_like_a_block(tmp_path: Path) -> None:
    tokens = tokens_of(1, 6)
    footing = block(tokens)
    file = checkpoint(tokens, footing)
    whole = written(tmp_path, footing, file)[1].read_bytes()
    for place in range(0, len(whole), 7):
        changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        path_of(tmp_path, file).write_bytes(changed)
        assert is_refused(tmp_path, file), place
