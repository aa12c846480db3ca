"""What is written beside the files takes its turn among them, and keeps their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.disk_cache.jobs import Chore, Sweep, Swept
from daemon.disk_cache.limits import DiskLimits
from daemon.errors import DiskNotCleared
from mlx_backend.journal import Journals
from tests.disk_cache.shelf import MODEL, do, done
from tests.engine.disks import disk
from tests.engine.harness import run, running, words


def allowed(folder: Path, limits: DiskLimits, writes: int = 0) -> int:
    """What a chore hears that it may write, and then writes."""
    heard: list[int] = []

    def run(most_bytes: int) -> int:
        heard.append(most_bytes)
        return writes

    do(folder, Chore(run, limits))
    [most_bytes] = heard
    return most_bytes


def test_what_has_to_stay_free_and_what_is_left_of_the_day_bound_it(tmp_path: Path) -> None:
    free = done(tmp_path, Swept, Sweep()).free_bytes
    assert allowed(tmp_path, DiskLimits(floor_bytes=2 * free)) == 0
    assert 0 < allowed(tmp_path, DiskLimits(floor_bytes=free // 2)) < free
    a_day = DiskLimits(floor_bytes=0, write_bytes_per_day=1000)
    assert [allowed(tmp_path, a_day, writes=600) for _ in range(3)] == [1000, 400, 0]


def test_it_is_told_of_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    in_the_way = tmp_path / "a file"
    in_the_way.write_bytes(b"")
    assert allowed(in_the_way, DiskLimits(floor_bytes=0)) == 0


def test_what_fails_is_not_done_again(tmp_path: Path) -> None:
    heard: list[int] = []

    def fail(most_bytes: int) -> int:
        heard.append(most_bytes)
        raise OSError("the disk is broken")

    do(tmp_path, Chore(fail))
    assert len(heard) == 1


def test_a_journal_is_written_where_the_models_files_are(tmp_path: Path) -> None:
    journals = Journals(tmp_path, lambda write: do(tmp_path, Chore(write)) and None)
    journals.of(MODEL).add("kind", 1, lambda: {})
    [found] = tmp_path.glob("*/answers.journal")
    assert found.parent.name == MODEL
    assert done(tmp_path, Swept, Sweep()).written_today == found.stat().st_size
    assert found.exists(), "its model's files may be on their way"


def test_whoever_clears_the_disk_clears_the_journals_too(tmp_path: Path) -> None:

    async def scenario() -> None:
        async with running(disk=disk(tmp_path)) as bench:
            await bench.run(words(100, 1))
        (tmp_path / "a-model-without-files").mkdir()
        for folder in tmp_path.iterdir():
            if folder.is_dir():
                (folder / "answers.journal").write_bytes(b"what was said")
        async with running(disk=disk(tmp_path)) as bench:
            await bench.engine.clear_disk()
            assert not [*tmp_path.glob("*/*")]
            assert not (tmp_path / "a-model-without-files").exists()

    run(scenario())


def test_who_clears_the_disk_is_told_of_what_is_still_there(tmp_path: Path) -> None:

    async def scenario() -> None:
        async with running(disk=disk(tmp_path)) as bench:
            await bench.run(words(100, 1))
        [file] = tmp_path.glob("*/*.safetensors")
        async with running(disk=disk(tmp_path)) as bench:
            await bench.run(words(100, 1))
            file.unlink()
            file.mkdir()
            with pytest.raises(DiskNotCleared, match=f"{tmp_path} .*{file.name}"):
                await bench.engine.clear_disk()
            file.rmdir()
            await bench.engine.clear_disk()

    run(scenario())
