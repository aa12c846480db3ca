"""The tier over real files, with both threads' work done at once."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.jobs import JobQueue, ReadDone, ReadFailed
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_cache.room import bytes_at_most
from daemon.disk_tier import DiskOptions, DiskTier
from mlx_backend.host_arrays import HostArray
from mlx_backend.messages import CacheKind, TokenIds
from tests.disk_cache.shelf import (
    MODEL,
    chain_of,
    checkpoint,
    content_of,
    do,
    path_of,
    same_bits,
    tokens_of,
    written,
)

OTHER_MODEL = "b" * 64
FILE_BYTES = 10_000
"""More than any of the files here takes, and less than two of them."""


class Run:
    """A run of the daemon that has looked through the folder."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.folder = folder
        self._writer, self._reader = JobQueue(), JobQueue()
        options = DiskOptions(folder, DiskLimits(**{"floor_bytes": 0, **limits}))
        self.tier = DiskTier(options, self._writer, self._reader, lambda: 0.0)
        self.tier.start()
        self.index = self.tier.index(MODEL)
        self.work()

    def work(self) -> None:
        while jobs := [job for queue in (self._writer, self._reader) for job in waiting(queue)]:
            for job in jobs:
                for result in do(self.folder, job):
                    self.tier.hear(result)

    def save(self, *files: StoredFile) -> list[bool]:
        said = [self.tier.save(file, content_of(file), is_dear=True) for file in files]
        self.work()
        return said

    def found(self, tokens: TokenIds) -> int:
        return self.index.find(tokens, CacheKind.SLICEABLE, len(tokens)).length

    def read(self, tokens: TokenIds) -> list[ReadDone | ReadFailed]:
        heard: list[ReadDone | ReadFailed] = []
        found = self.index.find(tokens, CacheKind.CHECKPOINTED, len(tokens))
        for file in (*found.blocks, *filter(None, [found.checkpoint])):
            self.tier.read(file, heard.append)
        self.work()
        return heard


def waiting(queue: JobQueue):
    return list(iter(queue.poll, None))


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*/*.safetensors")}


def test_after_a_restart_what_was_saved_is_found_and_reads_the_same(tmp_path: Path):
    tokens = tokens_of(1, 90)
    blocks = chain_of(tokens, 40, 80, 90)
    state = checkpoint(tokens, blocks[-1])
    assert Run(tmp_path).save(*blocks, state) == [True] * 4
    run = Run(tmp_path)
    run.index.check()
    assert run.tier.status().bytes == sum(sizes(tmp_path).values())
    heard = run.read(tokens)
    assert [result.file.name for result in heard] == [file.name for file in (*blocks, state)]
    for result in heard:
        assert isinstance(result, ReadDone)
        assert same_bits(result.content, content_of(result.file))


def test_useless_files_go_first_and_the_limit_holds_from_the_start(tmp_path: Path):
    mine = chain_of(tokens_of(1, 120), 40, 80, 120)
    Run(tmp_path).save(*mine)
    for seed in range(10):
        written(tmp_path, *chain_of(tokens_of(seed, 40), 40, identity=OTHER_MODEL))
    mine_bytes = sum(path_of(tmp_path, file).stat().st_size for file in mine)
    old = tmp_path / OTHER_MODEL / f"{'c' * 40}.block.safetensors"
    old.write_bytes(b"of another version")
    limit = mine_bytes + 2 * FILE_BYTES
    run = Run(tmp_path, max_bytes=limit)
    assert not old.exists()
    assert sum(sizes(tmp_path).values()) <= limit
    status = run.tier.status()
    assert status.usable_bytes == mine_bytes
    assert 0 < status.unusable_bytes == sum(sizes(tmp_path).values()) - mine_bytes
    for seed in range(20, 40):
        run.save(*chain_of(tokens_of(seed, 40), 40))
        assert sum(sizes(tmp_path).values()) <= limit
        assert run.tier.status().bytes == sum(sizes(tmp_path).values())
    assert not (tmp_path / OTHER_MODEL).exists() or not os.listdir(tmp_path / OTHER_MODEL)
    run.index.check()


def test_the_order_of_use_is_found_again_on_the_files(tmp_path: Path):
    run = Run(tmp_path)
    chains = [chain_of(tokens_of(seed, 80), 40, 80) for seed in range(3)]
    for chain in chains:
        run.save(*chain)
    run.tier.touch(MODEL, (chains[0][1],))
    run.tier.note_uses()
    run.work()
    total = sum(sizes(tmp_path).values())
    run = Run(tmp_path, max_bytes=total - 1)
    assert [run.found(tokens_of(seed, 80)) for seed in range(3)] == [80, 40, 80]
    run = Run(tmp_path, max_bytes=total // 6 + 100)
    assert [run.found(tokens_of(seed, 80)) for seed in range(3)] == [40, 0, 0]


def test_nothing_is_built_on_a_folder_that_somebody_has_deleted(tmp_path: Path):
    run = Run(tmp_path / "read")
    head, middle, end = chain_of(tokens_of(1, 120), 40, 80, 120)
    run.save(head, middle)
    rmtree(tmp_path / "read")
    run.save(end)
    run.tier.note_uses()
    run.work()
    assert sizes(tmp_path / "read") == {}
    assert run.tier.status().bad_files == 0
    assert run.save(head, middle, end) == [True, True, True]
    assert Run(tmp_path / "read").found(tokens_of(1, 120)) == 120


def test_a_damaged_file_is_gone_with_all_that_stands_on_it(tmp_path: Path):
    tokens = tokens_of(1, 120)
    blocks = chain_of(tokens, 40, 80, 120)
    run = Run(tmp_path)
    run.save(*blocks, checkpoint(tokens, blocks[-1]))
    path = path_of(tmp_path, blocks[1])
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    heard = run.read(tokens)
    assert [type(result) for result in heard] == [ReadDone, ReadFailed, ReadDone, ReadDone]
    assert run.found(tokens) == 40
    assert list(sizes(tmp_path)) == [blocks[0].name]
    assert run.tier.status().bad_files == 1
    assert run.save(*blocks[1:]) == [True, True]
    assert len(run.read(tokens[:80])) == 0  # no checkpoint yet
    assert run.found(tokens) == 120


def test_a_file_that_is_no_block_at_all_is_counted_when_it_is_found(tmp_path: Path):
    blocks = chain_of(tokens_of(1, 80), 40, 80)
    Run(tmp_path).save(*blocks)
    path_of(tmp_path, blocks[1]).write_bytes(path_of(tmp_path, blocks[0]).read_bytes())
    run = Run(tmp_path)
    assert run.found(tokens_of(1, 80)) == 40
    assert run.tier.status().bad_files == 1
    assert list(sizes(tmp_path)) == [blocks[0].name]


def test_forgetting_leaves_nothing(tmp_path: Path):
    run = Run(tmp_path)
    run.save(*chain_of(tokens_of(1, 80), 40, 80))
    run.tier.forget()
    run.work()
    assert not (tmp_path / MODEL).exists()


def test_the_days_writing_is_known_to_the_next_run(tmp_path: Path):
    run = Run(tmp_path, write_bytes_per_day=2 * FILE_BYTES)
    run.save(*chain_of(tokens_of(1, 40), 40))
    now = run.tier.status().written_today_bytes
    again = Run(tmp_path, write_bytes_per_day=now + 100)
    assert again.tier.status().written_today_bytes == now == sum(sizes(tmp_path).values())
    assert again.save(*chain_of(tokens_of(2, 40), 40)) == [False]


def test_a_folder_that_is_no_folder_turns_the_cache_off(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    run = Run(tmp_path / "file")
    status = run.tier.status()
    assert not status.is_on
    assert status.last_failure
    assert run.tier.is_ready(MODEL)
    assert run.save(*chain_of(tokens_of(1, 40), 40)) == [False]


@pytest.mark.parametrize("arrays", [0, 1, 300])
@pytest.mark.parametrize("described", ["", '{"classes":["a","b"]}' * 100])
def test_a_file_takes_no_more_than_was_reckoned_with(tmp_path: Path, arrays: int, described: str):
    [file] = chain_of(tokens_of(1, 40), 40, identity="d" * 64)
    array = HostArray("BF16", (np.zeros((1, 8, 40, 128), np.uint16),))
    content = Content((array,) * arrays, described)
    run = Run(tmp_path)
    run.tier.index(file.identity)
    run.work()
    assert run.tier.save(file, content, is_dear=True)
    run.work()
    [nbytes] = sizes(tmp_path).values()
    assert nbytes <= bytes_at_most(file, content) <= nbytes + 5_000 + 100 * arrays + len(described)
