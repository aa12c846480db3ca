"""What recording a reason costs for a prompt of 100,000 tokens.

    python -m tests.benchmarks.reasons

Prints processor times of one request that leaves its session's own history late, in a tree that
has lost as much as it remembers: what the match tells beyond what it restores, and the record.
"""

from __future__ import annotations

import time

import numpy as np

from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.explain import departure, read_reason
from mlx_backend.messages import CacheKind, MessageStart, Prompt
from tests.fakes import FakeSpan

TOKENS = 100_000
LOST = 600
ROUNDS = 50


def lossy_cache() -> tuple[PrefixCache, Prompt]:
    """A cache that holds a session's last turn, and the session's next prompt."""
    random = np.random.default_rng(1)
    cache = PrefixCache(kind=CacheKind.SLICEABLE, max_entries=None, max_bytes=1 << 40)
    for _ in range(LOST):
        store(cache, random.integers(0, 50_000, 100).astype(np.int32), "other")
    cache.clear()
    history = random.integers(0, 50_000, TOKENS).astype(np.int32)
    store(cache, history, "session")
    prompt = history.copy()
    prompt[-100:] += 1
    starts = tuple(MessageStart(at, at // 200, "user") for at in range(0, TOKENS, 200))
    return cache, Prompt(prompt, messages=starts)


def store(cache: PrefixCache, tokens: np.ndarray, session: str) -> None:
    span = FakeSpan.of(tokens)
    kind = EntryKind.TURN_END
    cache.insert(
        tokens, span=span, checkpoint=None, kind=kind, conversation=session, holder=session
    )


def main() -> None:
    cache, prompt = lossy_cache()
    matched, recorded = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        match = cache.match(prompt.tokens, "session")
        found = time.process_time()
        reason = read_reason(match, prompt)
        assert departure(match, prompt) is not None
        recorded.append(time.process_time() - found)
        matched.append(found - started)
        cache.release(match)
        assert (reason.code, reason.message_index) == ("diverged", 499)
    print(f"{len(prompt)} tokens, {len(prompt.messages)} messages:")
    print(f"  match, with what it tells   {min(matched) * 1e6:7.0f} µs")
    print(f"  reason and both sides       {min(recorded) * 1e6:7.0f} µs")


if __name__ == "__main__":
    main()
