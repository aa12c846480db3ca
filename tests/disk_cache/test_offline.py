"""The disk cache without a daemon: what the command line does on the folder itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from daemon.disk_cache import folder as folders
from daemon.disk_cache import ledger
from daemon.disk_cache.jobs import Sweep, Swept
from daemon.disk_cache.offline import check, clear, inventory
from tests.disk_cache.shelf import block, chain_of, checkpoint, done, tokens_of, written

LONG = tokens_of(1, 300)
FILES = chain_of(LONG, 100, 300)
MARK = checkpoint(LONG[:150], FILES[1])
OTHER = block(LONG[:9], identity="other")


def test_what_is_there_is_listed_model_by_model_the_last_used_first(tmp_path: Path) -> None:
    paths = written(tmp_path, *FILES, MARK, OTHER)
    hour_ago = time.time() - 3600
    os.utime(paths[3], (hour_ago, hour_ago))
    found = inventory(tmp_path)
    mine, other = found.models
    assert (mine.files, mine.blocks, mine.checkpoints) == (3, 2, 1)
    assert (other.identity, other.files, other.bytes) == ("other", 1, paths[3].stat().st_size)
    assert mine.idle_seconds < 60 < 3500 < other.idle_seconds
    assert found.disk.bytes == mine.bytes + other.bytes == sum(p.stat().st_size for p in paths)
    assert (found.disk.files, found.disk.folder) == (4, str(tmp_path))
    assert found.disk.free_bytes > 0


def test_all_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    paths = written(tmp_path, *FILES, MARK, OTHER)
    folder = paths[0].parent
    (folder / f"{MARK.name}.0123456789abcdef.tmp").write_text("half")
    for name in (folders.JOURNAL, folders.JOURNAL_TEMPORARY):
        (folder / name).write_text("notes")
    (folder / "mine").write_text("mine")
    clear(tmp_path)
    left = sorted(str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*"))
    assert left == [folder.name, f"{folder.name}/mine", ledger.NAME]
    assert inventory(tmp_path).models == ()


def test_a_check_tells_what_is_wrong_and_deletes_it(tmp_path: Path) -> None:
    paths = written(tmp_path, *FILES, MARK, OTHER)
    assert check(tmp_path).is_sound
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"\xff")
    found = check(tmp_path)
    assert [FILES[1].name in words for words in found.bad] == [True]
    assert [path.exists() for path in paths] == [True, False, False, True]
    assert check(tmp_path).is_sound


def test_a_folder_that_is_not_there_is_empty_and_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    clear(folder)
    assert inventory(folder).models == ()
    assert check(folder).is_sound
    assert not folder.exists()


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.write_text("mine")
    with pytest.raises(OSError, match="cache"):
        inventory(folder)
    with pytest.raises(OSError, match="cache"):
        clear(folder)
    assert not check(folder).is_sound


def test_what_cannot_be_cleared_is_an_error(tmp_path: Path) -> None:
    paths = written(tmp_path, *FILES)
    (paths[0].parent / folders.JOURNAL).mkdir()
    with pytest.raises(OSError, match=f"not all could be deleted: .*{folders.JOURNAL}"):
        clear(tmp_path)
    assert not any(path.exists() for path in paths)


def test_folders_of_others_keep_their_rights(tmp_path: Path) -> None:
    written(tmp_path, OTHER)
    notes = tmp_path / "notes"
    notes.mkdir(0o755)
    (notes / "thesis.safetensors").write_text("mine")
    notes.chmod(0o755)
    done(tmp_path, Swept, Sweep())
    assert [model.identity for model in inventory(tmp_path).models] == ["other"]
    assert check(tmp_path).is_sound
    clear(tmp_path)
    assert notes.stat().st_mode & 0o777 == 0o755
    assert (notes / "thesis.safetensors").read_text() == "mine"
