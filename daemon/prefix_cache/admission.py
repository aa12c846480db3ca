"""How much of a newcomer is let in, before anything is evicted for it.

A newcomer is over-large if it could not stay even beside nothing but its own prefix. Then nothing
is gained by evicting everything else for it.
"""

from __future__ import annotations

from daemon.prefix_cache.limits import Limits, blocks_within
from daemon.prefix_cache.nodes import NODE_BYTES, TOKEN_BYTES, Place, Totals
from mlx_backend.interface import Checkpoint, Span


def affordable_tokens(limits: Limits, totals: Totals, place: Place, span: Span) -> int:
    """How many tokens of a new span are worth storing: all, or whole blocks of an over-large one.

    That one gets what is free, or half the cache together with its prefix, whichever is more:
    others are shortened for it but never all lost.
    """
    prefix_bytes, prefix_arrays = _held_by_prefix(place)
    own_bytes = span.nbytes + span.length * TOKEN_BYTES
    nodes_bytes = 2 * NODE_BYTES
    is_over_large = (
        prefix_bytes + own_bytes + nodes_bytes > limits.max_bytes
        or prefix_arrays + span.array_count > limits.max_arrays
    )
    if not is_over_large:
        return span.length
    room = max(limits.max_bytes - totals.bytes, limits.max_bytes // 2 - prefix_bytes)
    arrays = max(limits.max_arrays - totals.arrays, limits.max_arrays // 2 - prefix_arrays)
    return blocks_within(span, room - nodes_bytes, arrays)


def is_over_large(limits: Limits, place: Place, span: Span | None, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint, with the spans that it needs, could not stay beside nothing else."""
    held_bytes, held_arrays = _held_by_prefix(place)
    if span is not None:
        held_bytes += span.nbytes + span.length * TOKEN_BYTES
        held_arrays += span.array_count
    return (
        held_bytes + checkpoint.nbytes + NODE_BYTES > limits.max_bytes
        or held_arrays + checkpoint.array_count > limits.max_arrays
    )


def _held_by_prefix(place: Place) -> tuple[int, int]:
    """Bytes (spans and ids) and arrays of the path up to `place`, no checkpoint counted."""
    held_bytes, held_arrays = 0, 0
    for node in place.node.path():
        assert node.span is not None
        share = min(1.0, (place.length - node.start) / len(node.edge))
        held_bytes += round(share * node.span.nbytes) + round(share * node.edge.nbytes)
        held_arrays += round(share * node.span.array_count)
    return held_bytes, held_arrays
