"""Spans and checkpoints made of the host's memory, bit for bit: what `host_arrays` gave of them.

Whatever is handed in was verified to be what was once written, but not to be of this model: that
is done here, before anything is copied. The copies are detached, as those in `snapshots` are.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlx_backend.checkpoints import CheckpointForm, MlxCheckpoint
from mlx_backend.device_arrays import device_dtype, on_device
from mlx_backend.errors import RestoreFailed
from mlx_backend.fitting import fitting_states, refuse_foreign_block, refuse_unknown
from mlx_backend.host_arrays import TOKEN_AXIS, HostArray
from mlx_backend.layers import CacheLayout
from mlx_backend.snapshots import BLOCK_TOKENS, Block, MlxSpan


def import_span(layout: CacheLayout, arrays: Sequence[HostArray], start: int, stop: int) -> MlxSpan:
    """Tokens [start, stop) of `arrays`. Raises RestoreFailed where the layout's are others."""
    refuse_unknown(layout)
    length = arrays[0].shape[TOKEN_AXIS] if arrays and len(arrays[0].shape) == 4 else stop
    refuse_foreign_block(layout, length, [(a.shape, device_dtype(a)) for a in arrays])
    if not 0 <= start < stop <= length:
        raise RestoreFailed(f"the span holds {length} tokens, not up to {stop} from {start} on")
    blocks = []
    for first in range(start, stop, BLOCK_TOKENS):
        last = min(first + BLOCK_TOKENS, stop)
        copies = tuple(on_device(array, first, last) for array in arrays)
        blocks.append(Block(last - first, copies))
    mx.eval([block.arrays for block in blocks])
    return MlxSpan(tuple(blocks))


def import_checkpoint(
    layout: CacheLayout, length: int, described: str, arrays: Sequence[HostArray]
) -> MlxCheckpoint:
    """The checkpoint that `described` and `arrays` were taken from. Raises RestoreFailed."""
    refuse_unknown(layout)
    try:
        form = CheckpointForm.parse(described)
    except ValueError as error:
        raise RestoreFailed(str(error)) from error
    _refuse_other_places(form, arrays)
    checkpoint = MlxCheckpoint(length, form, [on_device(array) for array in arrays])
    fitting_states(layout, checkpoint)
    return checkpoint


def _refuse_other_places(form: CheckpointForm, arrays: Sequence[HostArray]) -> None:
    """Every place in the stacks has to be that of one array of one leaf."""
    there = [(stack, at) for stack, a in enumerate(arrays) for at in range((*a.shape, 0)[0])]
    named = sum(sum(leaf.presence) for leaf in form.leaves)
    if sorted(form.places) != there or named != len(there):
        raise RestoreFailed(f"a checkpoint of {named} arrays in {len(there)} places")
