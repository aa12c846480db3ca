"""Whether kept state is one of this model's: what is not is refused, before a row is made of it.

What comes from memory fits unless something is broken; what comes from a file may be anything.
Both pass here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import ArraysCache, RotatingKVCache

from mlx_backend.checkpoints import LeafState, MlxCheckpoint
from mlx_backend.errors import RestoreFailed
from mlx_backend.host_arrays import TOKEN_AXIS
from mlx_backend.layers import CacheLayout, Leaf, leaf_caches
from mlx_backend.messages import CacheKind

Shape = tuple[tuple[int, ...], Any]
"""An array's dimensions and type."""


def refuse_unknown(layout: CacheLayout) -> None:
    if layout.kind is CacheKind.UNCACHEABLE:
        raise RestoreFailed("nothing of this model can be restored: a layer's class is unknown")


def refuse_foreign_block(layout: CacheLayout, length: int, arrays: Sequence[Shape]) -> None:
    """Raises RestoreFailed unless `length` tokens of this model's KV are such arrays."""
    if len(arrays) != len(layout.groups):
        raise RestoreFailed("the span was made by a model with other layers")
    for (dimensions, dtype), group in zip(arrays, layout.groups, strict=True):
        shape = group.shape
        wanted = (len(group.members), shape.heads, length, shape.dim)
        if dimensions != wanted or dtype != shape.dtype:
            raise RestoreFailed(
                f"the span holds {dtype} {dimensions}, the model needs {shape.dtype} {wanted}"
            )


def fitting_states(layout: CacheLayout, checkpoint: MlxCheckpoint) -> list[LeafState]:
    """The state of each whole leaf, in order. Raises RestoreFailed if one is not the model's."""
    states = checkpoint.states()
    leaves = [leaf for leaf in layout.leaves if leaf.is_whole]
    if [state.cache_class for state in states] != [leaf.cache_class for leaf in leaves]:
        raise RestoreFailed("the checkpoint was made by a model with other layers")
    caches = zip(layout.leaves, leaf_caches(layout.make_caches()), strict=True)
    whole = (cache for leaf, cache in caches if leaf.is_whole)
    for leaf, cache, state in zip(leaves, whole, states, strict=True):
        _refuse_foreign_arrays(leaf, state)
        if leaf.cache_class is not ArraysCache:
            _refuse_other_place(cache, state, checkpoint.length)
    return states


def _refuse_foreign_arrays(leaf: Leaf, state: LeafState) -> None:
    name, wanted, held = leaf.cache_class.__name__, leaf.arrays, state.arrays
    if len(held) != len(wanted):
        raise RestoreFailed(f"a {name} of {len(held)} arrays, not {len(wanted)}")
    for array, shape in zip(held, wanted, strict=True):
        if shape is not None and (array is None or not shape.fits(array)):
            found = "nothing" if array is None else f"{array.dtype} {array.shape}"
            needed = f"{shape.dtype} {shape.dimensions}"
            raise RestoreFailed(f"a {name} holds {found}, the model needs {needed}")


def _refuse_other_place(cache: Any, state: LeafState, length: int) -> None:
    """A ring or a chunk has to hold the last tokens of `length`, and to know where they are."""
    held, values_held = (array.shape[TOKEN_AXIS] for array in state.arrays if array is not None)
    if values_held != held or len(state.numbers) != 2:
        raise RestoreFailed("the keys and values of a window are not of the same tokens")
    offset, place = state.numbers
    is_ring = type(cache) is RotatingKVCache
    limit = int(cache.max_size if is_ring else cache.chunk_size)
    if offset != length or held != min(length, limit):
        raise RestoreFailed(f"a window of {held} tokens at {offset}, not at {length}")
    first, last = (0, held) if is_ring else (offset - held, offset - held)
    if not first <= place <= last:
        raise RestoreFailed(f"a window of {held} tokens at {offset} goes on at {place}")
