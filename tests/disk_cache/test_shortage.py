"""Where descriptors or memory are wanting, nothing is known of a file: it is left as it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from daemon.disk_cache import offline
from daemon.disk_cache.jobs import ReadFailed, Scan, Sweep, Swept
from daemon.disk_cache.reading import Reader
from tests.disk_cache.fake_disk import Disk, ready
from tests.disk_cache.shelf import (
    MODEL,
    chain_of,
    done,
    names_of,
    opening_fails,
    read,
    scanned,
    tokens_of,
    written,
)

SHORTAGES = [
    *(OSError(code, os.strerror(code)) for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)),
    MemoryError(),
]
FILES = chain_of(tokens_of(1, 1500), 500, 1000, 1500)

for_every_shortage = pytest.mark.parametrize("shortage", SHORTAGES, ids=repr)


@for_every_shortage
def test_a_file_that_cannot_be_read_now_is_read_later(tmp_path: Path, shortage: Exception) -> None:
    written(tmp_path, *FILES)
    with opening_fails(shortage):
        failed = done(tmp_path, ReadFailed, read(FILES[1]))
    assert failed.is_there
    assert names_of(scanned(tmp_path)) == [file.name for file in FILES]


@for_every_shortage
def test_what_cannot_be_looked_through_is_not_deleted(tmp_path: Path, shortage: Exception) -> None:
    written(tmp_path, *FILES)
    with opening_fails(shortage):
        assert scanned(tmp_path).bad == 0
    assert names_of(scanned(tmp_path)) == [file.name for file in FILES]


def test_what_stands_on_a_file_that_cannot_be_looked_at_is_not_deleted(tmp_path: Path) -> None:
    written(tmp_path, *FILES)
    steps = Reader(tmp_path).scan(Scan(MODEL))
    assert next(steps) is None
    with opening_fails(SHORTAGES[0]):
        *_, found = steps
    assert found is not None
    assert found.bad == 0
    assert names_of(scanned(tmp_path)) == [file.name for file in FILES]


@for_every_shortage
def test_at_the_start_it_counts_as_what_it_may_be(tmp_path: Path, shortage: Exception) -> None:
    written(tmp_path, *FILES)
    with opening_fails(shortage):
        swept = done(tmp_path, Swept, Sweep())
    assert {found.name for found in swept.files} == {file.name for file in FILES}


@for_every_shortage
def test_a_check_that_cannot_be_made_says_so_and_deletes_nothing(
    tmp_path: Path, shortage: Exception
) -> None:
    written(tmp_path, *FILES)
    with opening_fails(shortage):
        assert not offline.check(tmp_path).is_sound
    assert offline.check(tmp_path).is_sound
    assert names_of(scanned(tmp_path)) == [file.name for file in FILES]


def test_a_file_that_is_still_there_keeps_its_place_and_what_stands_on_it() -> None:
    run = ready(Disk(), "a")
    run.save("a", range(30), 10)
    run.work()
    [_, file, _] = run.tier.index("a").files()
    heard = list[bool]()
    run.disk.shortage = "no memory"
    run.tier.read(file, lambda result: heard.append(isinstance(result, ReadFailed)))
    run.work()
    assert heard == [True]
    status = run.tier.status()
    assert (status.bad_files, status.last_failure, status.files) == (0, "no memory", 3)
    run.check_index("a")
