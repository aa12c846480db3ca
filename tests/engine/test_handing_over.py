"""From the prefix tree to the writer: which files, in which order, and how many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.archive import Archive
from daemon.disk_cache.files import BLOCK_TOKENS, FileKind, StoredFile, key_of
from daemon.disk_cache.jobs import JobQueue, Scanned, Swept, Touch, Write, WriteFailed, Written
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_tier import DiskOptions, DiskTier
from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.saving import STATES_AT_ONCE, Saving
from mlx_backend.messages import CacheKind, TokenIds, token_ids
from tests.fakes import FakeCheckpoint, FakeSpan, tokens_of

MODEL = "a model"
FREE = 1 << 40
every_caching_kind = pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])


class Desk:
    """A tree, and a disk that writes what a test lets it write. `files` were written;
    `touched` ones were noted as used, at each time that some were."""

    def __init__(self, kind: CacheKind, **limits: Any) -> None:
        self.kind = kind
        self.writer, self.reader = JobQueue(), JobQueue()
        options = DiskOptions(Path("/nowhere"), DiskLimits(max_bytes=1 << 30, **limits))
        self.tier = DiskTier(options, self.writer, self.reader, lambda: 0.0)
        self.cache = PrefixCache(kind=kind, max_entries=None, max_bytes=1 << 30)
        self.archive = Archive(self.tier, MODEL, kind)
        self.files: list[StoredFile] = []
        self.touched: list[set[str]] = []

    def look_through(self) -> None:
        self.tier.hear(Swept((), 0, FREE, FREE))
        self.tier.hear(Scanned(MODEL, ()))

    def store(self, tokens: list[int], kind: EntryKind = EntryKind.TURN_END) -> None:
        ids = token_ids(tokens)
        known = self.cache.known(ids)
        span = FakeSpan.of(ids[known:]) if known < len(ids) else None
        checkpoint = FakeCheckpoint(tuple(tokens)) if self.kind is CacheKind.CHECKPOINTED else None
        whose = f"of {tokens[0]}"
        assert self.cache.insert(
            ids, span=span, checkpoint=checkpoint, kind=kind, conversation=whose
        )

    def saving(self) -> Saving:
        return Saving(self.cache, self.archive, self.tier)

    def write(self, most: int = 1_000_000) -> int:
        """Do what waits for the writer; how many files that were."""
        done = 0
        while done < most and (job := self.writer.poll()) is not None:
            if isinstance(job, Touch):
                self.touched.append({name for _, name in job.files})
            if isinstance(job, Write):
                self.expect_right(job)
                self.files.append(job.file)
                self.tier.hear(Written(job.file, 100, FREE, 0))
                done += 1
        return done

    def expect_right(self, job: Write) -> None:
        """Its name and its arrays are those of its tokens."""
        file = job.file
        (array,) = job.content.arrays
        if file.kind is FileKind.BLOCK:
            assert tokens_of(array.joined()) == file.tokens.tolist()
            assert 0 < file.end - file.start == len(file.tokens) <= BLOCK_TOKENS
        else:
            assert key_of(MODEL, [token_ids(array.joined().tolist())]) == file.key
            assert job.content.described

    def to_the_end(self, saving: Saving) -> None:
        for _ in range(1_000):
            if saving.is_over:
                return
            saving.go_on()
            self.write(1)
        raise AssertionError("it never ends")


def text(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50_000, length).tolist()


def spelled(files: list[StoredFile], key: str) -> list[int]:
    """All tokens up to the end of a block."""
    blocks = {file.key: file for file in files if file.kind is FileKind.BLOCK}
    tokens, end = list[int](), None
    while key:
        file = blocks[key]
        own = file.tokens.tolist()
        tokens = own[: (file.end if end is None else end) - file.start] + tokens
        key, end = file.parent, file.start
    return tokens


@every_caching_kind
def test_what_forks_share_is_one_file_and_each_stands_on_it(kind: CacheKind) -> None:
    desk = Desk(kind)
    desk.look_through()
    head = text(1_500, 1)
    forks = [[*head, *text(600, seed)] for seed in (2, 3)]
    for fork in forks:
        desk.store(fork)
    desk.to_the_end(desk.saving())
    tokens = sum(len(file.tokens) for file in desk.files)
    assert tokens == 1_500 + 2 * 600
    for fork in forks:
        assert spelled(desk.files, key_of(MODEL, [token_ids(fork)])) == fork
    checkpoints = [file for file in desk.files if file.kind is FileKind.CHECKPOINT]
    assert len(checkpoints) == (2 if kind is CacheKind.CHECKPOINTED else 0)
    assert all((file.parent, file.label) == (file.key, "turn_end") for file in checkpoints)
    assert len({file.name for file in desk.files}) == len(desk.files)


@every_caching_kind
def test_a_longer_conversation_costs_its_new_tokens_only(kind: CacheKind) -> None:
    desk = Desk(kind)
    desk.look_through()
    tokens = text(300, 1)
    for seed in range(5):
        tokens = [*tokens, *text(700, 10 + seed)]
        desk.store(tokens)
        desk.to_the_end(desk.saving())
    assert sum(len(file.tokens) for file in desk.files) == len(tokens)
    assert desk.tier.status().pending_bytes == 0


def test_a_checkpoint_between_two_is_written_beside_blocks_that_are_there() -> None:
    desk = Desk(CacheKind.CHECKPOINTED)
    desk.look_through()
    tokens = text(3_000, 1)
    desk.store(tokens)
    desk.to_the_end(desk.saving())
    blocks = len(desk.files) - 1
    desk.store(tokens[:2_000], EntryKind.HEAD)
    desk.to_the_end(desk.saving())
    last = desk.files[-1]
    assert (last.kind, last.end, last.label) == (FileKind.CHECKPOINT, 2_000, "head")
    assert len(desk.files) == blocks + 2
    by_key = {file.key: file for file in desk.files if file.kind is FileKind.BLOCK}
    assert by_key[last.parent].start < 2_000 <= by_key[last.parent].end


@every_caching_kind
def test_no_more_waits_for_the_writer_than_it_may(kind: CacheKind) -> None:
    desk = Desk(kind, pending_bytes=100_000)
    desk.look_through()
    for seed in range(6):
        desk.store(text(3_000, seed))
    saving, most = desk.saving(), 0
    while not saving.is_over:
        saving.go_on()
        most = max(most, desk.tier.pending_bytes)
        assert desk.write(1) or saving.is_over or saving.can_go_on
    assert 50_000 <= most <= 80_000
    assert saving.is_whole
    assert sum(len(file.tokens) for file in desk.files) == 18_000


def test_only_a_few_states_are_handed_over_at_a_time() -> None:
    desk = Desk(CacheKind.SLICEABLE)
    desk.look_through()
    for seed in range(3 * STATES_AT_ONCE):
        desk.store(text(100, seed))
    saving = desk.saving()
    for _ in range(3):
        saving.go_on()
        assert desk.write() == STATES_AT_ONCE
    desk.to_the_end(saving)
    assert saving.is_whole


def test_nothing_is_written_before_it_is_known_what_is_there() -> None:
    desk = Desk(CacheKind.SLICEABLE)
    desk.store(text(2_000, 1))
    saving = desk.saving()
    saving.go_on()
    assert not desk.archive.save(next(desk.cache.states()))
    assert desk.write() == 0
    assert not saving.is_over
    desk.look_through()
    desk.to_the_end(saving)
    assert saving.is_whole


@every_caching_kind
def test_once_all_is_written_what_was_used_since_the_last_time_is_noted(kind: CacheKind) -> None:
    desk = Desk(kind)
    desk.look_through()
    for seed in range(2):
        desk.store(text(2_000, seed))
    saving = desk.saving()
    saving.go_on()
    assert not desk.touched
    desk.to_the_end(saving)
    desk.write()
    assert desk.touched == [{file.name for file in desk.files}]
    desk.to_the_end(desk.saving())
    used = desk.archive.find(token_ids(text(2_000, 1)), 2_000)
    desk.archive.touch(used)
    desk.to_the_end(desk.saving())
    desk.write()
    ends = () if used.checkpoint is None else (used.checkpoint,)
    assert desk.touched[1:] == [{file.name for file in (*used.blocks, *ends)}]


def test_where_nothing_was_read_nobody_waits_until_it_is_known_what_is_there() -> None:
    saving = Desk(CacheKind.SLICEABLE).saving()
    saving.go_on()
    assert saving.is_over


def test_a_disk_that_fails_is_not_tried_without_end() -> None:
    desk = Desk(CacheKind.SLICEABLE, pending_bytes=2)
    desk.look_through()
    for seed in range(3):
        desk.store(text(5_000, seed))
    saving = desk.saving()
    failed = 0
    while not saving.is_over:
        saving.go_on()
        while (job := desk.writer.poll()) is not None:
            if isinstance(job, Write):
                failed += 1
                desk.tier.hear(WriteFailed(job.file, "it is broken", False, FREE))
    assert not saving.is_whole
    assert failed <= 3


def test_what_failed_or_went_again_is_not_taken_for_written() -> None:
    desk = Desk(CacheKind.SLICEABLE)
    desk.look_through()
    desk.store(text(500, 1))
    saving = desk.saving()
    saving.go_on()
    job = desk.writer.poll()
    assert isinstance(job, Write)
    desk.tier.hear(WriteFailed(job.file, "it is broken", False, FREE))
    saving.go_on()
    assert (saving.is_over, saving.is_whole) == (True, False)


def test_what_the_day_has_no_bytes_for_is_left_out_and_told() -> None:
    desk = Desk(CacheKind.SLICEABLE, write_bytes_per_day=50_000)
    desk.look_through()
    for seed in range(3):
        desk.store(text(2_000, seed))
    saving = desk.saving()
    written = 0
    while not saving.is_over:
        saving.go_on()
        while (job := desk.writer.poll()) is not None:
            if isinstance(job, Write):
                written += job.content.nbytes
                desk.tier.hear(Written(job.file, job.content.nbytes, FREE, written))
    assert not saving.is_whole
    assert 30_000 < written <= 50_000


def test_what_nobody_would_restore_is_not_written() -> None:
    desk = Desk(CacheKind.SLICEABLE)
    desk.look_through()
    desk.store(text(15, 1))
    saving = desk.saving()
    desk.to_the_end(saving)
    assert saving.is_whole
    assert not desk.files


def test_arrays_that_cannot_be_exported_cost_only_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(FakeSpan):
        def host_arrays(self, start: int, stop: int) -> Any:
            raise RuntimeError("the test says so")

    desk = Desk(CacheKind.SLICEABLE)
    desk.look_through()
    ids: TokenIds = token_ids(text(100, 1))
    stuck = Stuck(FakeSpan.of(ids).blocks)
    desk.store(text(200, 2))
    whose = {"kind": EntryKind.TURN_END, "conversation": "stuck"}
    assert desk.cache.insert(ids, span=stuck, checkpoint=None, **whose)
    assert not desk.archive.save(next(desk.cache.states()))
    saving = desk.saving()
    desk.to_the_end(saving)
    assert not saving.is_whole
    assert [len(file.tokens) for file in desk.files] == [200]
    assert caplog.text.count("could not be handed to the disk") == 2
