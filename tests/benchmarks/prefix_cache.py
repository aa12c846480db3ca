"""How long the prefix cache takes to look up, match and insert.

    python -m tests.benchmarks.prefix_cache

A prompt of 100,000 tokens in trees of 1,000 entries, each operation's median and worst of many.
Spans only know their lengths here, so that the index alone is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, TokenIds

PROMPT_TOKENS = 100_000
ENTRIES = 1_000
ROUNDS = 30
BLOCK_TOKENS = 1_024
CHECKPOINT_BYTES = 75_000_000


@dataclass(frozen=True)
class SizedSpan:
    """Implements `interface.Span` without any state."""

    length: int
    token_bytes: int = 100_000

    @property
    def nbytes(self) -> int:
        return self.length * self.token_bytes

    @property
    def array_count(self) -> int:
        return len(self.block_lengths())

    def block_lengths(self) -> tuple[int, ...]:
        full, rest = divmod(self.length, BLOCK_TOKENS)
        return (BLOCK_TOKENS,) * full + ((rest,) if rest else ())

    def split(self, at: int) -> tuple[SizedSpan, SizedSpan]:
        return SizedSpan(at), SizedSpan(self.length - at)

    def join(self, after: SizedSpan) -> SizedSpan:
        return SizedSpan(self.length + after.length)


@dataclass(frozen=True)
class SizedCheckpoint:
    """Implements `interface.Checkpoint` without any state."""

    length: int
    nbytes: int = CHECKPOINT_BYTES
    array_count: int = 50


def store(cache: PrefixCache, tokens: TokenIds, kind: CacheKind, name: str) -> None:
    known = cache.known(tokens)
    cache.insert(
        tokens,
        span=SizedSpan(len(tokens) - known) if known < len(tokens) else None,
        checkpoint=SizedCheckpoint(len(tokens)) if kind is CacheKind.CHECKPOINTED else None,
        kind=EntryKind.USER_END,
        conversation=name,
    )


def filled(kind: CacheKind, max_entries: int | None) -> tuple[PrefixCache, list[TokenIds]]:
    """One head, a hundred conversations on it, ten ends each, of up to a hundred thousand tokens.

    On a sliceable model an entry supersedes what it extends, so there the ends fork instead.
    """
    random = np.random.default_rng(1)
    cache = PrefixCache(kind=kind, max_entries=max_entries, max_bytes=1 << 60)
    head = random.integers(0, 50_000, PROMPT_TOKENS // 10, dtype=np.int32)
    prompts: list[TokenIds] = []
    for conversation in range(ENTRIES // 10):
        tokens = head
        for _ in range(10):
            turn = random.integers(0, 50_000, PROMPT_TOKENS // 11, dtype=np.int32)
            tokens = np.concatenate((tokens, turn))
            prompts.append(tokens)
            fork = np.concatenate((tokens, np.array([conversation], dtype=np.int32)))
            store(cache, fork if kind is CacheKind.SLICEABLE else tokens, kind, str(conversation))
    return cache, prompts


def milliseconds(action: Callable[[int], object]) -> tuple[float, float]:
    taken = []
    for round_number in range(ROUNDS):
        start = time.perf_counter()
        action(round_number)
        taken.append(1_000 * (time.perf_counter() - start))
    return statistics.median(taken), max(taken)


def measure(kind: CacheKind, max_entries: int | None) -> dict[str, tuple[float, float]]:
    cache, prompts = filled(kind, max_entries)
    longest = [tokens for tokens in prompts if len(tokens) > PROMPT_TOKENS * 9 // 10]
    random = np.random.default_rng(2)
    last = np.array([7], dtype=np.int32)
    known = [np.concatenate((longest[n % len(longest)], last)) for n in range(ROUNDS)]
    turns = [
        np.concatenate((tokens, random.integers(0, 50_000, 2_000, dtype=np.int32)))
        for tokens in known
    ]
    fresh = [random.integers(0, 50_000, PROMPT_TOKENS, dtype=np.int32) for _ in range(ROUNDS)]
    return {
        "look up": milliseconds(lambda n: cache.peek(known[n])),
        "match and release": milliseconds(lambda n: cache.release(cache.match(known[n]))),
        "insert a turn": milliseconds(lambda n: store(cache, turns[n], kind, f"turn {n}")),
        "insert a new prompt": milliseconds(lambda n: store(cache, fresh[n], kind, f"new {n}")),
    }


def main() -> None:
    print(f"{PROMPT_TOKENS:,} tokens, {ENTRIES:,} entries, milliseconds (median / worst)")
    for kind in (CacheKind.SLICEABLE, CacheKind.CHECKPOINTED):
        for max_entries in (None, ENTRIES * 9 // 10):
            limit = f"at most {max_entries} entries" if max_entries else "no limit"
            for name, (median, worst) in measure(kind, max_entries).items():
                print(f"{kind:<14}{limit:<22}{name:<22}{median:8.2f} /{worst:7.2f}")


if __name__ == "__main__":
    main()
