"""What the tests of rows, snapshots and batches share: tiny models, made once, and token lists."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_backend.interface import Snapshot
from mlx_backend.layers import CacheLayout, classify
from mlx_backend.messages import TokenIds
from mlx_backend.rows import PlainRow, fresh_row
from mlx_backend.tiny_models import KINDS, build, token_count

# Kinds whose state can be kept, and those of them that run on a quantised KV cache.
KEPT_KINDS = tuple(kind for kind in KINDS if kind != "unknown")
QUANTISED_KINDS = ("tiny-full", "tiny-sliding", "tiny-hybrid", "llama4", "falcon-h1", "idle-layer")
KINDS_AND_BITS = (
    *((kind, None) for kind in KEPT_KINDS),
    *((kind, 8) for kind in QUANTISED_KINDS),
    ("tiny-full", 4),
)


@cache
def tiny_model(kind: str) -> Any:
    return build(kind)


@cache
def tiny_layout(kind: str, kv_bits: int | None = None) -> CacheLayout:
    return classify(tiny_model(kind), kv_bits=kv_bits)


def some_tokens(count: int, seed: int = 0) -> TokenIds:
    return np.random.default_rng(seed).integers(0, token_count(), count).astype(np.int32)


def live_bytes() -> int:
    """Bytes in use, with an empty pool: a pooled buffer may be larger than what it serves."""
    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())


def row_of(kind: str, chunks: Sequence[TokenIds], *, bits: int | None = None) -> PlainRow:
    """A fresh row that has read `chunks`."""
    row = fresh_row(tiny_layout(kind, bits), room=sum(map(len, chunks)) + 64)
    for chunk in chunks:
        row.read(tiny_model(kind), chunk)
    return row


def snapshot_of(row: PlainRow) -> Snapshot:
    """All of the row, as one span."""
    checkpoint = row.capture_checkpoint() if row.layout.needs_checkpoint else None
    return Snapshot(row.length, (row.capture_span(0, row.length),), checkpoint)


def log_probabilities(kind: str, row: PlainRow, tokens: TokenIds) -> Any:
    """Run `tokens` as one chunk; the log-probabilities after each of them, (tokens, vocabulary)."""
    logits = tiny_model(kind)(mx.array(tokens)[None], cache=row.caches)[0]
    row.length += len(tokens)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def decoded(kind: str, row: PlainRow, tokens: TokenIds) -> Any:
    """Like `log_probabilities`, one token at a time, as decoding does."""
    return np.concatenate(
        [log_probabilities(kind, row, tokens[i : i + 1]) for i in range(len(tokens))]
    )
