"""Spans and checkpoints: immutable, detached copies of a row's state.

Detached means that nothing here shares a buffer with a live row: a slice would pin the whole
buffer behind it, and while anything else holds a live cache's array each append copies all of it.
`mx.contiguous` is not enough for that (it hands on the buffer of what is contiguous already);
concatenating at least two parts is.

Every capture works on a row's own caches and on one row of a batch alike: `row` is the row's place
in the batch, 0 for plain caches. Only the interval asked for is copied. Restoring is in `rows`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    RotatingKVCache,
)

from mlx_backend.checkpoints import LeafState, MlxCheckpoint
from mlx_backend.device_arrays import DTYPE_NAMES, copied, on_host
from mlx_backend.errors import StateMismatch
from mlx_backend.host_arrays import TOKEN_AXIS, HostArray, end_to_end
from mlx_backend.interface import Span
from mlx_backend.layers import CacheLayout, leaf_caches, slots_of
from mlx_backend.messages import CacheKind

BLOCK_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Block:
    """At most `BLOCK_TOKENS` tokens: per group one array (members, heads, tokens, dim)."""

    length: int
    arrays: tuple[Any, ...]


class MlxSpan:
    """KV of every sliceable leaf for an interval of tokens, in blocks. Implements `Span`."""

    __slots__ = ("array_count", "blocks", "length", "nbytes")

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks
        self.length = sum(block.length for block in blocks)
        arrays = [array for block in blocks for array in block.arrays]
        self.nbytes = sum(int(array.nbytes) for array in arrays)
        self.array_count = len(arrays)

    def block_lengths(self) -> tuple[int, ...]:
        return tuple(block.length for block in self.blocks)

    def split(self, at: int) -> tuple[MlxSpan, MlxSpan]:
        if not 0 < at < self.length:
            raise ValueError(f"cannot split {self.length} tokens at {at}")
        ends = list(accumulate(self.block_lengths()))
        index = bisect_left(ends, at)
        before, block, after = self.blocks[:index], self.blocks[index], self.blocks[index + 1 :]
        if ends[index] == at:
            return MlxSpan((*before, block)), MlxSpan(after)
        left, right = _cut(block, block.length - (ends[index] - at))
        return MlxSpan((*before, left)), MlxSpan((right, *after))

    def join(self, after: Span) -> MlxSpan:
        if not isinstance(after, MlxSpan):
            raise TypeError(f"cannot join a {type(after).__name__}")
        last, first = self.blocks[-1], after.blocks[0]
        if last.length + first.length > BLOCK_TOKENS:
            return MlxSpan((*self.blocks, *after.blocks))
        return MlxSpan((*self.blocks[:-1], _merged(last, first), *after.blocks[1:]))

    def host_arrays(self, start: int, stop: int) -> tuple[HostArray, ...]:
        if not 0 <= start < stop <= self.length:
            raise ValueError(f"cannot export tokens [{start}, {stop}) of {self.length}")
        pieces, first = [], 0
        for block in self.blocks:
            left, right = max(start - first, 0), min(stop - first, block.length)
            if left < right:
                pieces.append([_exported(array, left, right) for array in block.arrays])
            first += block.length
        return end_to_end(pieces)


def capture_span(
    layout: CacheLayout, caches: Iterable[Any], start: int, stop: int, row: int = 0
) -> MlxSpan:
    """Copy the KV of the row's tokens [start, stop). Raises StateMismatch if a leaf has fewer."""
    if not 0 <= start < stop:
        raise ValueError(f"cannot capture tokens [{start}, {stop})")
    _refuse_unknown(layout)
    cuts = [
        _KVRow.of(cache, row) if leaf.is_sliceable else None
        for leaf, cache in zip(layout.leaves, leaf_caches(caches), strict=True)
    ]
    held = min((cut.length for cut in cuts if cut), default=stop)
    if held < stop:
        raise StateMismatch(f"asked for tokens up to {stop}, but a layer holds {held}")
    blocks = []
    for first in range(start, stop, BLOCK_TOKENS):
        last = min(first + BLOCK_TOKENS, stop)
        arrays = (
            copied([_cut_of(cuts, leaf).tokens(slot, first, last) for leaf, slot in group.members])
            for group in layout.groups
        )
        blocks.append(Block(last - first, tuple(arrays)))
    mx.eval([block.arrays for block in blocks])
    return MlxSpan(tuple(blocks))


def capture_checkpoint(
    layout: CacheLayout, caches: Iterable[Any], length: int, row: int = 0
) -> MlxCheckpoint:
    """Copy the state of the whole leaves, which is the state after `length` tokens."""
    _refuse_unknown(layout)
    leaves = zip(layout.leaves, leaf_caches(caches), strict=True)
    states = [leaf_state(cache, row) for leaf, cache in leaves if leaf.is_whole]
    return MlxCheckpoint.of(length, states)


def leaf_state(cache: Any, row: int = 0) -> LeafState:
    """What to keep of a whole leaf, as lazy views of the live arrays: copy them, then let go."""
    capture = {
        RotatingKVCache: _ring_state,
        BatchRotatingKVCache: _batched_ring_state,
        ArraysCache: _arrays_state,
        ChunkedKVCache: _chunked_state,
    }[type(cache)]
    return capture(cache, row)


def _refuse_unknown(layout: CacheLayout) -> None:
    if layout.kind is CacheKind.UNCACHEABLE:
        raise StateMismatch("a layer keeps its state in an unknown class: nothing can be captured")


@dataclass(frozen=True, slots=True)
class _KVRow:
    """Where one row's tokens lie in a sliceable leaf: token t at `first + t` of each slot."""

    slots: tuple[Any, ...]
    row: int
    first: int
    length: int

    @classmethod
    def of(cls, cache: Any, row: int) -> _KVRow:
        if type(cache) is BatchKVCache:
            padding = int(cache.left_padding[row].item())
            return cls(slots_of(cache), row, padding, cache._idx - padding)
        return cls(slots_of(cache), row, 0, cache.offset)

    def tokens(self, slot: int, start: int, stop: int) -> Any:
        array = self.slots[slot]
        return array[self.row : self.row + 1, :, self.first + start : self.first + stop]


def _cut_of(cuts: Sequence[_KVRow | None], leaf: int) -> _KVRow:
    cut = cuts[leaf]
    assert cut is not None
    return cut


def _exported(array: Any, start: int, stop: int) -> HostArray:
    return HostArray(DTYPE_NAMES[array.dtype], (on_host(array)[:, :, start:stop],))


def _cut(block: Block, at: int) -> tuple[Block, Block]:
    left = tuple(copied([array[:, :, :at]], TOKEN_AXIS) for array in block.arrays)
    right = tuple(copied([array[:, :, at:]], TOKEN_AXIS) for array in block.arrays)
    mx.eval(left, right)
    return Block(at, left), Block(block.length - at, right)


def _merged(left: Block, right: Block) -> Block:
    pairs = zip(left.arrays, right.arrays, strict=True)
    arrays = tuple(copied(pair, TOKEN_AXIS) for pair in pairs)
    mx.eval(arrays)
    return Block(left.length + right.length, arrays)


def _ring_state(cache: Any, row: int) -> LeafState:
    """A ring cut to its window; numbers are (offset, index of the next write).

    After a chunk the ring is in temporal order and longer than its window: what the next token
    sees is `keep` tokens from the front and the rest from the end. After single tokens it is
    within its window and rotated; it is kept rotated, so that the next attention sums in the same
    order as without the capture.
    """
    keys, values, size = cache.keys, cache.values, cache.keys.shape[TOKEN_AXIS]
    index = cache._idx
    if cache.offset < size:
        keys, values = (a[:, :, : cache.offset] for a in (keys, values))
    elif size > cache.max_size:
        keys, values = (_window(a, cache.keep, cache.max_size) for a in (keys, values))
        index = cache.max_size
    return LeafState(RotatingKVCache, (cache.offset, index), (keys, values))


def _window(array: Any, keep: int, size: int) -> Any:
    tail = array[:, :, array.shape[TOKEN_AXIS] - (size - keep) :]
    return mx.concatenate([array[:, :, :keep], tail], axis=TOKEN_AXIS) if keep else tail


def _batched_ring_state(cache: Any, row: int) -> LeafState:
    """One row of a batched ring as a ring of its own, without its padding.

    A rotated ring without padding is what the row's own would be. One with padding is put in
    temporal order first: the padding lies where the oldest tokens would be.
    """
    padding = max(0, int(cache.left_padding[row].item()))
    offset = int(cache.offset[row].item())
    keys, values = cache.keys[row : row + 1], cache.values[row : row + 1]
    index = cache._idx
    if cache.rotated and padding:
        keys, values = (_unrolled(array, index)[:, :, padding:] for array in (keys, values))
        index = keys.shape[TOKEN_AXIS]
    elif not cache.rotated:
        first = max(padding, index - cache.max_size)
        keys, values = (array[:, :, first:index] for array in (keys, values))
        index -= first
    return LeafState(RotatingKVCache, (offset, index), (keys, values))


def _unrolled(ring: Any, index: int) -> Any:
    return mx.concatenate([ring[:, :, index:], ring[:, :, :index]], axis=TOKEN_AXIS)


def _arrays_state(cache: Any, row: int) -> LeafState:
    if cache.lengths is not None:
        raise StateMismatch("a recurrent layer is in the middle of a padded batch")
    arrays = tuple(None if a is None else a[row : row + 1] for a in cache.cache)
    return LeafState(ArraysCache, (), arrays)


def _chunked_state(cache: Any, row: int) -> LeafState:
    """The chunk's worth that the next step keeps; numbers are (offset, start_position)."""
    valid = cache.offset - cache.start_position
    first = max(0, valid - cache.chunk_size)
    keys, values = (a[:, :, first:valid] for a in (cache.keys, cache.values))
    return LeafState(ChunkedKVCache, (cache.offset, cache.start_position + first), (keys, values))
