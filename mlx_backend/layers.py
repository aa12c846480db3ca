"""What a model keeps per layer: which cache classes, what can be cut, how large a token is.

A model's caches are a list, some entries of which are `CacheList`s; everything here and in
`snapshots` speaks of *leaves*: that list with every `CacheList` flattened, in order. A leaf is
sliceable (its arrays have a token axis that can be cut anywhere), whole (a ring, a recurrent
state: only good after exactly n tokens), or unknown. Classes count by identity, never by
inheritance: a subclass may have changed what its arrays mean.

Some leaves are never written (layers that share another layer's KV). They carry nothing, and only
running the model tells: `classify` reads a few tokens with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from mlx_backend.errors import ModelUnsupported
from mlx_backend.messages import CacheKind

SLICEABLE_CLASSES = (KVCache, QuantizedKVCache, ConcatenateKVCache)
WHOLE_CLASSES = (RotatingKVCache, ArraysCache, ChunkedKVCache)
PROBE_TOKENS = 4
QUANTIZED_GROUP_SIZES = (64, 32)

Caches = list[Any]
"""One cache object per layer, as `model(tokens, cache=...)` wants them."""


@dataclass(frozen=True, slots=True)
class SlotShape:
    """One array of a sliceable leaf, (batch, heads, tokens, dim)."""

    heads: int
    dim: int
    dtype: Any

    @property
    def token_bytes(self) -> int:
        return int(self.heads * self.dim * self.dtype.size)


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """One array of a whole leaf; None for the axis along which a window holds its tokens."""

    dimensions: tuple[int | None, ...]
    dtype: Any

    def fits(self, array: Any) -> bool:
        pairs = zip(self.dimensions, array.shape, strict=False)
        has_dimensions = len(self.dimensions) == array.ndim and all(
            wanted in (None, held) for wanted, held in pairs
        )
        return has_dimensions and bool(array.dtype == self.dtype)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf.

    `slots` are its arrays' shapes, in `slots_of`'s order, where it is sliceable; `arrays` those of
    a whole one, in the order of a `LeafState`, None for an array that the probe did not need.
    """

    cache_class: type
    is_written: bool
    slots: tuple[SlotShape, ...] = ()
    arrays: tuple[ArrayShape | None, ...] = ()

    @property
    def is_sliceable(self) -> bool:
        return self.is_written and self.cache_class in SLICEABLE_CLASSES

    @property
    def is_whole(self) -> bool:
        return self.is_written and self.cache_class in WHOLE_CLASSES


@dataclass(frozen=True, slots=True)
class Group:
    """Arrays of equal shape and type: one stacked array per block. Members are (leaf, slot)."""

    shape: SlotShape
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What `classify` found. `make_caches()` gives fresh, empty caches for one row.

    `span_token_bytes` is the KV of all sliceable leaves for one token, `checkpoint_bytes` what one
    checkpoint takes once its rings are full, `ring_token_bytes` one token in all of them.
    """

    kind: CacheKind
    class_names: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    groups: tuple[Group, ...]
    span_token_bytes: int
    checkpoint_bytes: int
    ring_token_bytes: int
    warnings: tuple[str, ...]
    make_caches: Callable[[], Caches]

    @property
    def needs_checkpoint(self) -> bool:
        return any(leaf.is_whole for leaf in self.leaves)


def leaf_caches(caches: Iterable[Any]) -> Iterator[Any]:
    """The caches with every `CacheList` flattened; works for one row's and for batched ones."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from leaf_caches(cache.caches)
        else:
            yield cache


def slots_of(cache: Any) -> tuple[Any, ...]:
    """The arrays of a KV cache in slot order (keys first); () while it is empty."""
    if cache.keys is None:
        return ()
    if isinstance(cache.keys, tuple | list):
        return (*cache.keys, *cache.values)
    return cache.keys, cache.values


def set_slots(cache: Any, arrays: Sequence[Any]) -> None:
    """Inverse of `slots_of`."""
    half = len(arrays) // 2
    if type(cache) is QuantizedKVCache:
        cache.keys, cache.values = tuple(arrays[:half]), tuple(arrays[half:])
    else:
        cache.keys, cache.values = arrays


def arrays_of(cache: Any) -> list[Any]:
    """Every array a leaf holds; for evaluating it and for counting its bytes."""
    if type(cache) is ArraysCache:
        return [array for array in cache.cache if array is not None]
    if hasattr(cache, "keys"):
        return list(slots_of(cache))
    return _arrays_in(cache.state)


def classify(model: Any, *, kv_bits: int | None = None) -> CacheLayout:
    """Read a few tokens with `model` to learn what its caches are.

    With `kv_bits` (4 or 8) every `KVCache` becomes a `QuantizedKVCache` from the first token on.
    Raises ModelUnsupported if the model cannot be run (so).
    """

    def make_plain() -> Caches:
        return list(make_prompt_cache(model))

    caches = make_plain()
    _probe(model, caches, "mlx-lm cannot run this model")
    if kv_bits is None:
        return _layout(caches, make_plain)
    group_sizes = _group_sizes(caches, kv_bits)

    def make_quantized() -> Caches:
        sizes = iter(group_sizes)
        return [_quantized(cache, sizes, kv_bits) for cache in make_plain()]

    if not group_sizes:
        warning = f"kv_bits={kv_bits} has no effect: the model has no KV that can be quantised"
        return _layout(caches, make_plain, warning)

    caches = make_quantized()
    _probe(model, caches, f"this model's attention cannot run on a {kv_bits}-bit KV cache")
    return _layout(caches, make_quantized)


def _probe(model: Any, caches: Caches, complaint: str) -> None:
    try:
        model(mx.zeros((1, PROBE_TOKENS), dtype=mx.int32), cache=caches)
        mx.eval([arrays_of(cache) for cache in leaf_caches(caches)])
    except Exception as error:
        raise ModelUnsupported(f"{complaint}: {error}") from error


def _layout(caches: Caches, make_caches: Callable[[], Caches], *warnings: str) -> CacheLayout:
    probed = list(leaf_caches(caches))
    leaves = tuple(_leaf(cache) for cache in probed)
    doubts = sorted({doubt for cache in probed for doubt in _doubts(cache)})
    return CacheLayout(
        kind=CacheKind.UNCACHEABLE if doubts else _kind(leaves),
        class_names=tuple(dict.fromkeys(leaf.cache_class.__name__ for leaf in leaves)),
        leaves=leaves,
        groups=_groups(leaves),
        span_token_bytes=sum(slot.token_bytes for leaf in leaves for slot in leaf.slots),
        checkpoint_bytes=sum(_whole_bytes(cache) for cache in probed),
        ring_token_bytes=sum(_ring_token_bytes(cache) for cache in probed),
        warnings=(*warnings, *(f"nothing is reused with this model: {doubt}" for doubt in doubts)),
        make_caches=make_caches,
    )


def _doubts(cache: Any) -> Iterator[str]:
    """Reasons not to keep this leaf's state, as clauses."""
    name = type(cache).__name__
    if type(cache) not in (*SLICEABLE_CLASSES, *WHOLE_CLASSES):
        yield f"it keeps state in {name}, a class that mlxd does not know"
    elif arrays_of(cache) and getattr(cache, "offset", PROBE_TOKENS) != PROBE_TOKENS:
        yield f"one of its {name}s counts {cache.offset} tokens where {PROBE_TOKENS} were read"


def _kind(leaves: tuple[Leaf, ...]) -> CacheKind:
    is_checkpointed = any(leaf.is_whole for leaf in leaves)
    return CacheKind.CHECKPOINTED if is_checkpointed else CacheKind.SLICEABLE


def _leaf(cache: Any) -> Leaf:
    cache_class = type(cache)
    is_written = bool(arrays_of(cache))
    if not is_written:
        return Leaf(cache_class, is_written)
    if cache_class in SLICEABLE_CLASSES:
        shapes = (SlotShape(a.shape[1], a.shape[3], a.dtype) for a in slots_of(cache))
        return Leaf(cache_class, is_written, slots=tuple(shapes))
    return Leaf(cache_class, is_written, arrays=tuple(_array_shapes(cache)))


def _array_shapes(cache: Any) -> Iterator[ArrayShape | None]:
    """Of a leaf that is whole; of no other class anything is kept."""
    if type(cache) is ArraysCache:
        for array in cache.cache:
            yield None if array is None else ArrayShape(tuple(array.shape), array.dtype)
    elif type(cache) in WHOLE_CLASSES:
        for array in slots_of(cache):
            rows, heads, _, dim = array.shape
            yield ArrayShape((rows, heads, None, dim), array.dtype)


def _groups(leaves: tuple[Leaf, ...]) -> tuple[Group, ...]:
    members: dict[SlotShape, list[tuple[int, int]]] = {}
    for index, leaf in enumerate(leaves):
        for slot, shape in enumerate(leaf.slots):
            members.setdefault(shape, []).append((index, slot))
    return tuple(Group(shape, tuple(found)) for shape, found in members.items())


def _whole_bytes(cache: Any) -> int:
    """What a checkpoint of this leaf takes once it is full."""
    if type(cache) is ArraysCache:
        return sum(int(array.nbytes) for array in arrays_of(cache))
    if type(cache) in (RotatingKVCache, ChunkedKVCache):
        size = cache.max_size if type(cache) is RotatingKVCache else cache.chunk_size
        return _ring_token_bytes(cache) * int(size)
    return 0


def _ring_token_bytes(cache: Any) -> int:
    """One token of a leaf that keeps the last few tokens only."""
    is_ring = type(cache) in (RotatingKVCache, ChunkedKVCache)
    return sum(int(a.nbytes) // a.shape[2] for a in slots_of(cache)) if is_ring else 0


def _group_sizes(caches: Caches, kv_bits: int) -> list[int]:
    """The quantisation group of each `KVCache` leaf, in order; 64 for those never written."""
    sizes = []
    for cache in leaf_caches(caches):
        if type(cache) is not KVCache:
            continue
        dims = [int(array.shape[-1]) for array in slots_of(cache)]
        fitting = [n for n in QUANTIZED_GROUP_SIZES if all(dim and dim % n == 0 for dim in dims)]
        if not fitting:
            raise ModelUnsupported(
                f"{kv_bits}-bit KV needs head sizes that are multiples of 32; "
                f"this model has {dims}. Start it without kv_bits."
            )
        sizes.append(fitting[0])
    return sizes


def _quantized(cache: Any, sizes: Iterator[int], bits: int) -> Any:
    if type(cache) is CacheList:
        return CacheList(*(_quantized(inner, sizes, bits) for inner in cache.caches))
    if type(cache) is KVCache:
        return QuantizedKVCache(group_size=next(sizes), bits=bits)
    return cache


def _arrays_in(state: Any) -> list[Any]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, tuple | list):
        return [array for item in state for array in _arrays_in(item)]
    return []
