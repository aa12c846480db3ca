"""Copies rows between plain caches and batched ones, layer by layer.

mlx-lm can extend and filter a batch in place, but then the whole of it exists twice for a moment,
and it cannot leave room behind the last token. Here the new cache of one layer is built from all
rows that it is to hold and evaluated, and the old layers are dropped, before the next layer's
turn: the peak is the new batch and one layer. A batch of one is a list of plain caches again.

Rows are padded on the left. Recurrent state and rings have no padding of tokens to hide: a row's
state is complete when it joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from mlx_backend.device_arrays import copied
from mlx_backend.layers import CacheLayout, Caches, arrays_of, leaf_caches
from mlx_backend.rows import ROOM_STEP
from mlx_backend.snapshots import leaf_state

PROBE_LENGTHS = (16, 128)
PROBE_TOKENS = (1, 2)
PROBE_TOLERANCE = 0.1
"""Relative: bfloat16 noise stays well under it, a wrong position does not."""

Part = tuple[Any, int]
"""One row of one layer: its cache, plain or batched, and the row's place in it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A row to copy: the caches it is in, plain or batched, and its place in them."""

    caches: Caches
    index: int


def why_alone(model: Any, layout: CacheLayout) -> str | None:
    """Why rows of `model` cannot share a batch; None if they can."""
    unmergeable = _without_batched_form(layout.make_caches())
    if unmergeable:
        return f"there is no batched form of {' or '.join(unmergeable)}"
    if not pads_harmlessly(model, layout):
        return "beside a longer row, one would be given other tokens than alone"
    return None


def can_merge(caches: Caches) -> bool:
    """Whether every layer of a row's plain caches has a batched form."""
    return not _without_batched_form(caches)


def _without_batched_form(caches: Caches) -> list[str]:
    return sorted(
        {
            type(cache).__name__
            for cache in leaf_caches(caches)
            if type(cache) not in (KVCache, ArraysCache)
            and not (type(cache) is RotatingKVCache and cache.keep == 0)
        }
    )


def pads_harmlessly(model: Any, layout: CacheLayout) -> bool:
    """Whether `model` gives two rows of different lengths in one batch what it gives each alone.

    Some models take a position from the batch's width instead of the row's own count; that shows
    in a short trial. Others choose whole blocks of keys and count the blocks from the padding on:
    that shows only where there are more blocks than they choose, after thousands of tokens.
    A wrong position shows at every token. Where one token differs and the next does not, a near
    tie between experts went the other way, which it may as well do alone.
    """
    if _chooses_blocks(model):
        return False
    alone = [_probe_row(model, layout, length) for length in PROBE_LENGTHS]
    together = merged([Source(deepcopy(caches), 0) for caches in alone])
    has_agreed = [False] * len(alone)
    for probe in PROBE_TOKENS:
        token = mx.array([[probe]])
        actual = model(mx.repeat(token, len(alone), axis=0), cache=together)
        for index, caches in enumerate(alone):
            has_agreed[index] |= _agrees(actual[index], model(token, cache=caches)[0])
        if all(has_agreed):
            return True
    return False


def _agrees(actual: Any, expected: Any) -> bool:
    actual, expected = actual.astype(mx.float32), expected.astype(mx.float32)
    error, spread = actual - expected, expected - mx.mean(expected)
    return bool((_norm(error) <= PROBE_TOLERANCE * _norm(spread)).item())


def merged(sources: Sequence[Source]) -> Caches:
    """New caches that hold the rows of `sources` in order, with the most room that any had.

    Consumes the sources: each layer of theirs is dropped as soon as it was copied.
    """
    caches: Caches = []
    for layer in range(len(sources[0].caches)):
        cache = _merged_layer([(s.caches[layer], s.index) for s in sources])
        mx.eval([arrays_of(leaf) for leaf in leaf_caches([cache])])
        caches.append(cache)
        for source in sources:
            source.caches[layer] = None
    return caches


def _chooses_blocks(model: Any) -> bool:
    modules = model.modules() if hasattr(model, "modules") else ()
    return any(getattr(module, "index_block_size", None) for module in modules)


def _probe_row(model: Any, layout: CacheLayout, length: int) -> Caches:
    caches = layout.make_caches()
    model((mx.arange(length) % 16)[None], cache=caches)
    mx.eval([arrays_of(cache) for cache in leaf_caches(caches)])
    return caches


def _norm(array: Any) -> Any:
    return mx.sqrt(mx.sum(mx.square(array)))


def _merged_layer(parts: Sequence[Part]) -> Any:
    first = parts[0][0]
    if type(first) is CacheList:
        columns = range(len(first.caches))
        return CacheList(
            *(_merged_layer([(c.caches[k], row) for c, row in parts]) for k in columns)
        )
    if type(first) in (KVCache, BatchKVCache):
        return _merged_kv(parts)
    if type(first) in (RotatingKVCache, BatchRotatingKVCache):
        return _merged_rings([_plain_ring(cache, row) for cache, row in parts])
    return _merged_arrays([_plain_arrays(cache, row) for cache, row in parts])


def _merged_kv(parts: Sequence[Part]) -> Any:
    rows = [_kv_row(cache, row) for cache, row in parts]
    lengths = [0 if row is None else int(row[0].shape[2]) for row in rows]
    longest = max(lengths)
    padding = [longest - length for length in lengths]
    cache = KVCache() if len(parts) == 1 else BatchKVCache(padding)
    if longest == 0:  # a layer that borrows another's KV
        return cache
    filled = [row for row in rows if row is not None]
    capacity = longest + (max(_ahead(cache) for cache, _ in parts) or ROOM_STEP)
    cache.keys, cache.values = (
        _right_aligned([row[slot] for row in filled], longest, capacity) for slot in (0, 1)
    )
    if len(parts) == 1:
        cache.offset = longest
    else:
        cache.offset, cache._idx = mx.array(lengths), longest
    return cache


def _kv_row(cache: Any, row: int) -> tuple[Any, Any] | None:
    """The keys and values of one row's tokens, as lazy slices; None where there are none."""
    if cache.keys is None:
        return None
    first, last = 0, int(cache.size())
    if type(cache) is BatchKVCache:
        first = int(cache.left_padding[row].item())
    cut = (slice(row, row + 1), slice(None), slice(first, last))
    return cache.keys[cut], cache.values[cut]


def _ahead(cache: Any) -> int:
    """For how many more tokens a KV cache has room."""
    return 0 if cache.keys is None else int(cache.keys.shape[2] - cache.size())


def _right_aligned(rows: Sequence[Any], longest: int, capacity: int) -> Any:
    """One array (rows, heads, capacity, dim) in which every row's tokens end at `longest`."""
    heads, dim = rows[0].shape[1], rows[0].shape[3]
    buffer = mx.zeros((len(rows), heads, capacity, dim), dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        buffer[i : i + 1, :, longest - row.shape[2] : longest] = row
    return buffer


def _plain_ring(cache: Any, row: int) -> Any:
    """A view of one row as the plain ring it would be alone."""
    state = leaf_state(cache, row)
    ring = RotatingKVCache(cache.max_size)
    ring.keys, ring.values = state.arrays
    ring.offset, ring._idx = state.numbers
    return ring


def _merged_rings(rings: Sequence[Any]) -> Any:
    if len(rings) > 1:
        return RotatingKVCache.merge(rings)
    (ring,) = rings
    ring.keys, ring.values = copied([ring.keys]), copied([ring.values])
    return ring


def _plain_arrays(cache: Any, row: int) -> Any:
    plain = ArraysCache(len(cache.cache))
    plain.cache = list(leaf_state(cache, row).arrays)
    return plain


def _merged_arrays(plains: Sequence[Any]) -> Any:
    if len(plains) > 1:
        return ArraysCache.merge(plains)
    (plain,) = plains
    plain.cache = [None if array is None else copied([array]) for array in plain.cache]
    return plain
