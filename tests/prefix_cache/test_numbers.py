"""What the index itself costs in memory: counted, and honestly reported."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, TokenIds
from tests.prefix_cache.traffic import KINDS

MAX_BYTES_A_TOKEN = 16


@dataclass(frozen=True, slots=True)
class NoState:
    """Implements `interface.Span` and `interface.Checkpoint` with a length and nothing else."""

    length: int
    nbytes: int = 0
    array_count: int = 0

    def block_lengths(self) -> tuple[int, ...]:
        full, rest = divmod(self.length, 1_000)
        return (1_000,) * full + ((rest,) if rest else ())

    def split(self, at: int) -> tuple[NoState, NoState]:
        return NoState(at), NoState(self.length - at)

    def join(self, after: NoState) -> NoState:
        return NoState(self.length + after.length)


def store(cache: PrefixCache, tokens: TokenIds, kind: CacheKind, name: str) -> None:
    known = cache.known(tokens)
    checkpoint = NoState(len(tokens)) if kind is CacheKind.CHECKPOINTED else None
    assert cache.insert(
        tokens,
        span=NoState(len(tokens) - known) if known < len(tokens) else None,
        checkpoint=checkpoint,
        kind=EntryKind.USER_END,
        conversation=name,
    )


def fill(cache: PrefixCache, kind: CacheKind, conversations: int, turn_tokens: int) -> None:
    """A common head, and ten turns a conversation with a dead end at each."""
    random = np.random.default_rng(1)
    head = random.integers(0, 50_000, 5_000, dtype=np.int32)
    for number in range(conversations):
        tokens = head
        for _ in range(10):
            answer = random.integers(0, 50_000, 50, dtype=np.int32)
            store(cache, np.concatenate((tokens, answer)), kind, str(number))
            turn = random.integers(0, 50_000, turn_tokens, dtype=np.int32)
            tokens = np.concatenate((tokens, turn))
            store(cache, tokens, kind, str(number))
    cache.check()


@KINDS
def test_the_index_takes_at_most_sixteen_bytes_a_token(kind):
    cache = PrefixCache(kind=kind, max_entries=None, max_bytes=1 << 40)
    fill(cache, kind, conversations=10, turn_tokens=400)
    status = cache.status()
    assert status.entries >= 100
    assert status.index_bytes <= MAX_BYTES_A_TOKEN * status.tokens


@KINDS
@pytest.mark.parametrize("turn_tokens", [20, 2_000])
def test_the_index_reports_what_it_really_takes(kind, turn_tokens):
    taken, reported = memory_and_report(kind, None, turn_tokens)
    assert 0.8 * reported <= taken <= 1.1 * reported


@KINDS
def test_evicting_gives_the_indexs_memory_back(kind):
    taken, reported = memory_and_report(kind, 10, 1_000)
    tombstones = 512 * 600
    assert taken <= 1.1 * reported + tombstones


def test_shortening_gives_the_ids_back():
    random = np.random.default_rng(1)
    kind = CacheKind.SLICEABLE
    tracemalloc.start()
    try:
        cache = PrefixCache(kind=kind, max_entries=None, max_bytes=400_000)
        for number in range(2):
            prompt = random.integers(0, 50_000, 80_000, dtype=np.int32)
            store(cache, prompt, kind, str(number))
        del prompt
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.status().entries == 2
    assert taken <= 1.1 * cache.status().index_bytes


def memory_and_report(
    kind: CacheKind, max_entries: int | None, turn_tokens: int
) -> tuple[int, int]:
    """Bytes that a filled cache took by Python's own count, and what it says of its index."""
    fill(PrefixCache(kind=kind, max_entries=None, max_bytes=1 << 40), kind, 1, 20)
    gc.collect()
    tracemalloc.start()
    try:
        cache = PrefixCache(kind=kind, max_entries=max_entries, max_bytes=1 << 40)
        fill(cache, kind, conversations=20, turn_tokens=turn_tokens)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return taken, cache.status().index_bytes
