"""Rows: the live state of one request on plain mlx-lm caches, fresh or restored from a snapshot.

A row's buffers have room for more tokens: mlx-lm's `KVCache` otherwise copies its whole history at
the first append, and again every 256 tokens. Buffers are made layer by layer, so that the peak is
the row itself and one layer. A restored row shares nothing with the snapshot it came from.

Key = exact state: a row counts its own tokens, and `check_state` compares with every layer that
counts too. What is in it is copied out by `snapshots`; batches of rows are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    ConcatenateKVCache,
)

from mlx_backend.checkpoints import LeafState, MlxCheckpoint
from mlx_backend.device_arrays import copied
from mlx_backend.errors import RestoreFailed, StateMismatch, StepFailed
from mlx_backend.fitting import fitting_states, refuse_foreign_block, refuse_unknown
from mlx_backend.host_arrays import TOKEN_AXIS
from mlx_backend.interface import Snapshot
from mlx_backend.layers import (
    CacheLayout,
    Caches,
    Leaf,
    SlotShape,
    arrays_of,
    leaf_caches,
    set_slots,
    slots_of,
)
from mlx_backend.messages import TokenIds
from mlx_backend.snapshots import MlxSpan, capture_checkpoint, capture_span

ROOM_STEP = 256


class PlainRow:
    """One request's state, batch of one. `caches` is what the model takes; `length` its tokens.

    Whoever runs the model on `caches` other than by `read` adds to `length` itself.
    """

    __slots__ = ("caches", "layout", "length")

    def __init__(self, layout: CacheLayout, caches: Caches, length: int = 0) -> None:
        self.layout = layout
        self.caches = caches
        self.length = length

    @property
    def nbytes(self) -> int:
        return state_bytes(self.caches)

    def read(self, model: Any, tokens: TokenIds) -> None:
        """Run one chunk and evaluate the state, not the logits. Raises StepFailed."""
        try:
            model(mx.array(tokens)[None], cache=self.caches)
            mx.eval([arrays_of(cache) for cache in leaf_caches(self.caches)])
        except Exception as error:
            raise StepFailed(f"reading {len(tokens)} tokens at {self.length}: {error}") from error
        self.length += len(tokens)

    def reserve(self, room: int) -> None:
        """Make room for `room` tokens in all, one copy of each layer that has less."""
        reserve(self.layout, self.caches, self.length, room)

    def check_state(self) -> None:
        """Raises StateMismatch unless every layer holds exactly `length` tokens."""
        check_state(self.layout, self.caches, self.length)

    def capture_span(self, start: int, stop: int) -> MlxSpan:
        """Copy the KV of tokens [start, stop). Raises StateMismatch."""
        self.check_state()
        return capture_span(self.layout, self.caches, start, stop)

    def capture_checkpoint(self) -> MlxCheckpoint:
        """Copy the state of the layers that cannot be cut. Raises StateMismatch."""
        self.check_state()
        return capture_checkpoint(self.layout, self.caches, self.length)


def fresh_row(layout: CacheLayout, room: int) -> PlainRow:
    """An empty row with buffers for `room` tokens where the cache class allows."""
    row = PlainRow(layout, layout.make_caches())
    row.reserve(room)
    return row


def restore_row(layout: CacheLayout, snapshot: Snapshot, room: int) -> PlainRow:
    """A row of `snapshot.length` tokens, copied, with buffers for `room` tokens in all.

    Raises RestoreFailed if the snapshot does not fit the layout; then nothing is held.
    """
    try:
        caches = _restored(layout, snapshot, room)
        check_state(layout, caches, snapshot.length)
    except RestoreFailed:
        raise
    except Exception as error:
        raise RestoreFailed(f"restoring {snapshot.length} tokens: {error}") from error
    return PlainRow(layout, caches, snapshot.length)


def state_bytes(caches: Iterable[Any]) -> int:
    """Bytes of all arrays in `caches`, room included."""
    return sum(int(a.nbytes) for cache in leaf_caches(caches) for a in arrays_of(cache))


def offsets(caches: Iterable[Any], row: int = 0) -> list[int | None]:
    """Each leaf's own count of tokens; None where its class has none."""
    return [_offset(cache, row) for cache in leaf_caches(caches)]


def check_state(layout: CacheLayout, caches: Iterable[Any], length: int, row: int = 0) -> None:
    """Raises StateMismatch unless each leaf that counts has exactly `length` tokens."""
    counted = zip(layout.leaves, offsets(caches, row), strict=True)
    for index, (leaf, offset) in enumerate(counted):
        place = f"layer state {index} ({leaf.cache_class.__name__})"
        if leaf.is_written and offset not in (None, length):
            raise StateMismatch(f"{place} holds {offset} tokens, not {length}")
        if not leaf.is_written and offset:
            raise StateMismatch(f"{place} holds {offset} tokens, but was never written at load")


@dataclass(frozen=True, slots=True)
class Buffers:
    """The KV buffers of a row, or of a batch of `rows`: tokens in them, and room in all."""

    rows: int
    used: int
    capacity: int

    @property
    def ahead(self) -> int:
        return self.capacity - self.used


def buffers(layout: CacheLayout, caches: Iterable[Any]) -> Buffers | None:
    """What any layer with room says of them, since all are alike; None where there is none."""
    for leaf, cache in zip(layout.leaves, leaf_caches(caches), strict=True):
        if _has_room(leaf):
            slots = slots_of(cache)
            if not slots:
                return Buffers(1, 0, 0)
            used = cache._idx if type(cache) is BatchKVCache else cache.offset
            return Buffers(slots[0].shape[0], used, slots[0].shape[TOKEN_AXIS])
    return None


def rounded_room(room: int) -> int:
    """The room that buffers really get when `room` is asked for."""
    return -(-room // ROOM_STEP) * ROOM_STEP


def reserve(layout: CacheLayout, caches: Iterable[Any], length: int, room: int) -> None:
    """Make KV buffers, a row's or a batch's, hold `room` tokens, keeping the first `length`.

    Array by array: what is copied is in memory twice until its copy is evaluated.
    """
    for leaf, cache in zip(layout.leaves, leaf_caches(caches), strict=True):
        if not _has_room(leaf):
            continue
        slots = list(slots_of(cache)) or [None] * len(leaf.slots)
        if room <= (0 if slots[0] is None else slots[0].shape[TOKEN_AXIS]):
            continue
        for index, shape in enumerate(leaf.slots):
            held = [slots[index][:, :, :length]] if length else []
            slots[index] = _with_room(held, shape, length, room)
            del held
            set_slots(cache, slots)
            mx.eval(slots[index])


def _has_room(leaf: Leaf) -> bool:
    return leaf.is_sliceable and leaf.cache_class is not ConcatenateKVCache


def _offset(cache: Any, row: int) -> int | None:
    if type(cache) in (BatchKVCache, BatchRotatingKVCache):
        return None if cache.keys is None else int(cache.offset[row].item())
    offset = getattr(cache, "offset", None)
    return offset if isinstance(offset, int) else None


def _restored(layout: CacheLayout, snapshot: Snapshot, room: int) -> Caches:
    refuse_unknown(layout)
    spans = _checked_spans(layout, snapshot)
    states = _checked_states(layout, snapshot)
    caches = layout.make_caches()
    places = {
        place: (g, m)
        for g, group in enumerate(layout.groups)
        for m, place in enumerate(group.members)
    }
    for index, cache in enumerate(leaf_caches(caches)):
        leaf = layout.leaves[index]
        if leaf.is_sliceable:
            _fill(
                cache,
                leaf,
                snapshot.length,
                room,
                spans,
                [places[index, slot] for slot in range(len(leaf.slots))],
            )
        elif leaf.is_whole:
            _set_state(cache, next(states))
    return caches


def _checked_spans(layout: CacheLayout, snapshot: Snapshot) -> list[MlxSpan]:
    spans = [span for span in snapshot.spans if isinstance(span, MlxSpan)]
    covered = sum(span.length for span in spans)
    if len(spans) != len(snapshot.spans) or covered < snapshot.length or snapshot.length < 1:
        raise RestoreFailed(f"spans cover {covered} of {snapshot.length} tokens")
    for block in (block for span in spans for block in span.blocks):
        shapes = [(tuple(array.shape), array.dtype) for array in block.arrays]
        refuse_foreign_block(layout, block.length, shapes)
    return spans


def _checked_states(layout: CacheLayout, snapshot: Snapshot) -> Iterator[LeafState]:
    if not layout.needs_checkpoint:
        return iter(())
    checkpoint = snapshot.checkpoint
    if not isinstance(checkpoint, MlxCheckpoint) or checkpoint.length != snapshot.length:
        raise RestoreFailed(f"no checkpoint at {snapshot.length} tokens")
    return iter(fitting_states(layout, checkpoint))


def _fill(
    cache: Any,
    leaf: Leaf,
    length: int,
    room: int,
    spans: Sequence[MlxSpan],
    places: Sequence[tuple[int, int]],
) -> None:
    """Write the first `length` tokens of `spans` into an empty KV cache, with room behind them."""
    room = 0 if leaf.cache_class is ConcatenateKVCache else max(room, length + 1)
    slots = [
        _with_room(_pieces(spans, group, member, length), shape, length, room)
        for (group, member), shape in zip(places, leaf.slots, strict=True)
    ]
    mx.eval(slots)
    set_slots(cache, slots)
    cache.offset = length


def _pieces(spans: Sequence[MlxSpan], group: int, member: int, length: int) -> list[Any]:
    pieces = []
    for block in (block for span in spans for block in span.blocks):
        if length <= 0:
            break
        pieces.append(block.arrays[group][member : member + 1, :, :length])
        length -= block.length
    return pieces


def _with_room(pieces: list[Any], shape: SlotShape, length: int, room: int) -> Any:
    """`pieces` (of `length` tokens in all) and zeros up to `room`, rounded up; lazy, a copy."""
    spare = rounded_room(room) - length
    if spare > 0:
        zero = mx.array(0, dtype=shape.dtype)
        rows = pieces[0].shape[0] if pieces else 1
        # Broadcast, so that the zeros take no memory before they are in place.
        pieces = [*pieces, mx.broadcast_to(zero, (rows, shape.heads, spare, shape.dim))]
    return copied(pieces, TOKEN_AXIS)


def _set_state(cache: Any, state: LeafState) -> None:
    arrays = [None if array is None else copied([array]) for array in state.arrays]
    mx.eval([array for array in arrays if array is not None])
    if type(cache) is ArraysCache:
        cache.cache = arrays
        return
    cache.keys, cache.values = arrays
    cache.offset, number = state.numbers
    if type(cache) is ChunkedKVCache:
        cache.start_position = number
    else:
        cache._idx = number
