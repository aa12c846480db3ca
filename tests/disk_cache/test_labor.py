"""A disk thread's day: in order, reads before long looks, an answer to everything, and an end."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.disk_cache.files import Content
from daemon.disk_cache.jobs import (
    Check,
    Checked,
    Chore,
    Delete,
    Deleted,
    JobQueue,
    ReadDone,
    ReaderJob,
    ReadFailed,
    Result,
    Scan,
    Scanned,
    Stop,
    Sweep,
    Swept,
    Touch,
    Write,
    WriteFailed,
    WriterJob,
    Written,
)
from daemon.disk_cache.labor import work
from daemon.disk_status import DiskCheck
from daemon.replies import Reply
from mlx_backend.host_arrays import HostArray
from tests.disk_cache.shelf import (
    MODEL,
    block,
    chain_of,
    checkpoint,
    content_of,
    do,
    files_of_at_most,
    names_of,
    path_of,
    read,
    scanned,
    tokens_of,
    written,
)

LONG = tokens_of(1, 3000)
FILE = block(LONG[:30])


def checked(folder: Path, *jobs: WriterJob | ReaderJob) -> tuple[DiskCheck, list[Result]]:
    """What a check found, and all results with `jobs` behind it."""

    async def ask() -> tuple[DiskCheck, list[Result]]:
        loop = asyncio.get_running_loop()
        reply = Reply(loop, loop.create_future())
        results = do(folder, Check(reply), *jobs)
        return await reply.future, results

    return asyncio.run(ask())


def test_jobs_are_done_in_their_order(tmp_path: Path) -> None:
    one, other = chain_of(LONG, 20, 40)
    gone = ((MODEL, one.name),)
    jobs = (Write(one, content_of(one)), Delete(gone), Write(other, content_of(other)), Sweep())
    results = do(tmp_path, *jobs)
    assert [type(result) for result in results] == [Written, Deleted, Written, Swept]
    assert isinstance(results[3], Swept)
    assert [found.name for found in results[3].files] == [other.name]


def test_a_read_does_not_wait_for_a_look_through_the_folder(tmp_path: Path) -> None:
    written(tmp_path, *chain_of(LONG, 500, 1000, 1500), block(tokens_of(2, 9), identity="other"))
    first, last = block(LONG[:500]), block(tokens_of(2, 9), identity="other")
    results = do(tmp_path, Scan(MODEL), read(first, 1), Scan("other"), read(last, 2))
    done = [(type(result), getattr(result, "ticket", None)) for result in results]
    assert done == [(ReadDone, 1), (ReadDone, 2), (Scanned, None), (Scanned, None)]


def test_a_read_does_not_wait_for_a_check(tmp_path: Path) -> None:
    written(tmp_path, FILE)
    found, results = checked(tmp_path, read(FILE))
    assert found.is_sound
    assert [type(result) for result in results] == [ReadDone, Checked]


def test_a_scan_does_not_wait_for_a_check(tmp_path: Path) -> None:
    written(tmp_path, *chain_of(LONG, 500, 1000, 1500))
    found, results = checked(tmp_path, Scan(MODEL))
    assert found.is_sound
    assert [type(result) for result in results] == [Scanned, Checked]


@pytest.mark.parametrize("dtype", ["BF16", "F32"], ids=["written", "refused"])
def test_arrays_are_let_go_of_before_the_result_is_told(tmp_path: Path, dtype: str) -> None:
    """They lie in device memory, which only the engine's thread may free."""
    alive, job = _job_of_a_mortal_array(dtype)
    queue, is_alive = JobQueue(), list[bool]()
    queue.put(job)
    queue.put(Stop())
    del job
    work(tmp_path, queue, lambda _: is_alive.append(alive() is not None))
    assert is_alive == [False]


def test_arrays_are_let_go_of_where_the_disk_fails_in_the_middle(tmp_path: Path) -> None:
    alive, job = _job_of_a_mortal_array("BF16")
    queue, is_alive = JobQueue(), list[bool]()
    queue.put(job)
    queue.put(Stop())
    del job
    with files_of_at_most(1000):
        work(tmp_path, queue, lambda _: is_alive.append(alive() is not None))
    assert is_alive == [False]


def _job_of_a_mortal_array(dtype: str) -> tuple[weakref.ref[np.ndarray[Any, Any]], Write]:
    array = np.zeros((1, 2, 30, 800), np.uint16)
    parts = (array[:, :, :9], array[:, :, 9:])
    return weakref.ref(array), Write(FILE, Content((HostArray(dtype, parts),)))


def test_it_ends_in_the_middle_of_a_look_through_the_folder(tmp_path: Path) -> None:
    written(tmp_path, *chain_of(LONG, 500, 1000))
    queue, results = JobQueue(), list[Result]()
    queue.put(Scan(MODEL))
    queue.put(Stop())
    work(tmp_path, queue, results.append)
    assert results == []


def test_once_halted_it_leaves_what_waits(tmp_path: Path) -> None:
    queue, results = JobQueue(), list[Result]()
    queue.put(Write(FILE, content_of(FILE)))
    queue.halt()
    work(tmp_path, queue, results.append)
    assert results == []
    assert list(tmp_path.iterdir()) == []


def test_a_failure_that_nobody_has_thought_of_is_an_answer_too() -> None:
    folder, gone = Path("a\0folder"), ((MODEL, FILE.name),)
    jobs = (Sweep(), Write(FILE, content_of(FILE)), Delete(gone), Touch(gone), read(FILE))
    results = do(folder, *jobs, Chore(lambda _: 1 // 0), Scan(MODEL))
    swept, unwritten, deleted, unread, unscanned = results
    assert isinstance(swept, Swept)
    assert "null" in swept.problem
    assert isinstance(unwritten, WriteFailed)
    assert isinstance(deleted, Deleted)
    assert isinstance(unread, ReadFailed)
    assert isinstance(unscanned, Scanned)


def test_a_check_of_sound_files_counts_them(tmp_path: Path) -> None:
    files = [*chain_of(LONG, 500, 1000), block(LONG[:9], identity="other")]
    paths = written(tmp_path, *files, checkpoint(LONG[:800], files[1]))
    found, results = checked(tmp_path)
    assert found.is_sound
    assert (found.files, found.bytes) == (4, sum(path.stat().st_size for path in paths))
    assert [result.lost for result in results if isinstance(result, Checked)] == [()]


def test_a_check_deletes_what_is_wrong_and_what_stands_on_it(tmp_path: Path) -> None:
    below, middle, above = chain_of(LONG, 500, 1000, 1500)
    side, low = block(LONG[:400]), checkpoint(LONG[:100], below)
    high, other = checkpoint(LONG[:1200], above), block(LONG[:9], identity="other")
    written(tmp_path, below, middle, above, side, low, high, other)
    whole = bytearray(path_of(tmp_path, middle).read_bytes())
    whole[-1] ^= 1  # in its arrays, where no scan looks
    path_of(tmp_path, middle).write_bytes(whole)
    assert middle.name in names_of(scanned(tmp_path))
    found, results = checked(tmp_path)
    assert [middle.name in words for words in found.bad] == [True]
    (told,) = results
    assert isinstance(told, Checked)
    assert told.lost == ((MODEL, middle.name),)
    assert set(told.useless) == {(MODEL, file.name) for file in (above, high)}
    assert set(names_of(scanned(tmp_path))) == {file.name for file in (below, side, low)}
    assert checked(tmp_path)[0].is_sound


def test_a_bad_checkpoint_takes_nothing_with_it(tmp_path: Path) -> None:
    below, above = chain_of(LONG, 500, 1000)
    mark = checkpoint(LONG[:500], below)
    paths = written(tmp_path, below, above, mark)
    paths[2].write_bytes(paths[2].read_bytes()[:-1] + b"\xff")
    results = checked(tmp_path)[1]
    assert [result.lost for result in results if isinstance(result, Checked)] == [
        ((MODEL, mark.name),)
    ]


def test_a_check_finds_what_a_scan_would_find(tmp_path: Path) -> None:
    below, above = chain_of(LONG, 500, 1000)
    paths = written(tmp_path, below, above)
    paths[0].write_bytes(paths[0].read_bytes()[:99])
    found, results = checked(tmp_path)
    assert [below.name in words for words in found.bad] == [True]
    (told,) = results
    assert isinstance(told, Checked)
    assert (told.lost, told.useless) == (((MODEL, below.name),), ((MODEL, above.name),))
    assert not any(path.exists() for path in paths)


def test_a_check_of_a_folder_that_is_not_there_finds_nothing(tmp_path: Path) -> None:
    assert checked(tmp_path / "none")[0].is_sound


def test_a_check_of_a_folder_that_cannot_be_read_is_not_sound(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    assert not checked(tmp_path / "cache")[0].is_sound
