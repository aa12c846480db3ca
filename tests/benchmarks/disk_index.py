"""What it costs to know what is on disk, on the engine's thread, between two steps.

An index of as many files as the cache may have, of conversations that begin alike: reading it in,
finding a prompt of 100,000 tokens, making room for another file when the cache is full.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from daemon.disk_cache.files import BLOCK_TOKENS, FileKind, StoredFile
from daemon.disk_cache.index import DiskIndex
from mlx_backend.messages import CacheKind, TokenIds

PROMPT_TOKENS = 100_000
FIND_TARGET_MS = 1.0
ROUNDS = 50
VOCABULARY = 150_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=int, default=65_536)


def main(arguments: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    prompt = ids(random, PROMPT_TOKENS)
    files = chain(prompt, 0, "")
    while len(files) < arguments.files:
        at = int(random.integers(1, 40)) * 500
        parent = files[(at - 1) // BLOCK_TOKENS].key
        forked = np.concatenate((prompt[:at], ids(random, 20 * BLOCK_TOKENS)))
        forked[at] = VOCABULARY + len(files)  # no two forks begin alike
        files += chain(forked, at, parent)
    index = DiskIndex("made-up")
    began = time.perf_counter()
    for file in files:
        assert index.add(file, is_written=True, used_at=float(file.start))
    index.oldest()
    print(f"{len(files):,} files read in: {(time.perf_counter() - began) * 1000:.0f} ms")
    for kind in (CacheKind.SLICEABLE, CacheKind.CHECKPOINTED):
        tell(f"find, {kind}", lambda kind=kind: index.find(prompt, kind, PROMPT_TOKENS - 1))
    tell("coverage", lambda: index.coverage(prompt))
    found = index.find(prompt, CacheKind.SLICEABLE, PROMPT_TOKENS)
    assert found.length == PROMPT_TOKENS
    tell("touch", lambda: index.touch(found.blocks))
    tell("the first to go", lambda: remove_oldest(index))
    print(f"target for {PROMPT_TOKENS:,} tokens: at most {FIND_TARGET_MS:.0f} ms")


def ids(random: np.random.Generator, length: int) -> TokenIds:
    return random.integers(0, VOCABULARY, length, dtype=np.int32)


def chain(tokens: TokenIds, start: int, parent: str) -> list[StoredFile]:
    """Blocks of `tokens` from `start` on; their keys are made up."""
    files = []
    for at in range(start, len(tokens), BLOCK_TOKENS):
        end = min(at + BLOCK_TOKENS, len(tokens))
        key = f"{tokens[at]}-{tokens[end - 1]}-{end}"
        own = tokens[at:end].copy()
        files.append(StoredFile("made-up", FileKind.BLOCK, key, parent, at, end, own, nbytes=1))
        parent = key
    return files


def remove_oldest(index: DiskIndex) -> None:
    oldest = index.oldest()
    assert oldest is not None
    index.remove(oldest[1].name)


def tell(what: str, work: Callable[[], object]) -> None:
    """The least of several times, which the machine's other work disturbs least."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    print(f"{what}: {min(times) * 1000:.3f} ms, median {np.median(times) * 1000:.3f} ms")
