"""Spans and checkpoints made of the host's memory, bit for bit: what `host_arrays` gave of them.

Whatever is handed in was verified to be what was once written, but not to be of this model: that
is done here. The copies are detached, as those in `snapshots` are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mlx_backend.checkpoints import CheckpointForm, MlxCheckpoint
from mlx_backend.device_arrays import device_dtype, on_device
from mlx_backend.errors import RestoreFailed
from mlx_backend.fitting import fitting_states, refuse_foreign_block, refuse_unknown
from mlx_backend.host_arrays import TOKEN_AXIS, HostArray
from mlx_backend.layers import CacheLayout
from mlx_backend.snapshots import BLOCK_TOKENS, Block, MlxSpan


def import_span(layout: CacheLayout, arrays: Sequence[HostArray], start: int, stop: int) -> MlxSpan:
    """Tokens [start, stop) of `arrays`. Raises RestoreFailed where the layout's are others."""
    with _failing_as_restore(f"tokens [{start}, {stop})"):
        refuse_unknown(layout)
        length = arrays[0].shape[TOKEN_AXIS] if arrays else stop
        refuse_foreign_block(layout, length, [(a.shape, device_dtype(a)) for a in arrays])
        if not 0 <= start < stop <= length:
            raise RestoreFailed(f"no tokens [{start}, {stop}) in a span of {length}")
        blocks = []
        for first in range(start, stop, BLOCK_TOKENS):
            last = min(first + BLOCK_TOKENS, stop)
            copies = on_device([array.tokens(first, last) for array in arrays])
            blocks.append(Block(last - first, copies))
        return MlxSpan(tuple(blocks))


def import_checkpoint(
    layout: CacheLayout, length: int, described: str, arrays: Sequence[HostArray]
) -> MlxCheckpoint:
    """The checkpoint that `described` and `arrays` were taken from. Raises RestoreFailed."""
    with _failing_as_restore(f"a checkpoint after {length} tokens"):
        refuse_unknown(layout)
        form = CheckpointForm.parse(described)
        if form.length != length:
            raise RestoreFailed(f"a checkpoint after {form.length} tokens, not {length}")
        _refuse_other_places(form, arrays)
        checkpoint = MlxCheckpoint(form, on_device(arrays))
        fitting_states(layout, checkpoint)
        return checkpoint


@contextmanager
def _failing_as_restore(what: str) -> Iterator[None]:
    try:
        yield
    except RestoreFailed:
        raise
    except Exception as error:  # whatever a strange file makes of itself, or no memory
        raise RestoreFailed(f"importing {what}: {error}") from error


def _refuse_other_places(form: CheckpointForm, arrays: Sequence[HostArray]) -> None:
    """Each place in the stacks has to be that of one array of one leaf."""
    there = [(stack, at) for stack, array in enumerate(arrays) for at in range(array.shape[0])]
    named = sum(sum(leaf.presence) for leaf in form.leaves)
    if sorted(form.places) != there or named != len(there):
        raise RestoreFailed(f"a checkpoint of {named} arrays in {len(there)} places")
