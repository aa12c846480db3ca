"""Which decoding rows share a batch: pure arithmetic, no mlx.

A batch reads the weights once for all of its rows, and pads every row to the longest. Rows share a
batch where the padding's KV bytes per step are less than the weights' bytes per step; else reading
the weights once more is cheaper. Rows that wait for a mask before each draw share with their own
kind only, so that no other row waits with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What matters of a batch between two steps.

    `lengths` are the tokens of the rows that stay; `has_left`: others have left since it was built.
    Its buffers hold `held` tokens, all rows, padding and room together, and have room for `ahead`
    more in each row. `is_constrained`: its rows have grammars.
    """

    lengths: tuple[int, ...]
    has_left: bool = False
    held: int = 0
    ahead: int = 0
    is_constrained: bool = False


def padding_tokens(lengths: Sequence[int]) -> int:
    """Tokens of padding in a batch of rows of these lengths."""
    return max(lengths) * len(lengths) - sum(lengths)


def may_share(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> bool:
    """Whether rows of these lengths are cheaper to decode in one batch than in two.

    `token_bytes` is the KV of one token that grows with the row, `weight_bytes` what a step reads.
    """
    return padding_tokens(lengths) * token_bytes < weight_bytes


def growth_tokens(batches: Sequence[BatchShape]) -> int:
    """How many more tokens the buffers hold once these batches are one."""
    lengths = [length for batch in batches for length in batch.lengths]
    room = max(lengths) + max(batch.ahead for batch in batches)
    return room * len(lengths) - sum(batch.held for batch in batches)


def next_rebuild(
    batches: Sequence[BatchShape],
    token_bytes: int,
    weight_bytes: int,
    spare_bytes: int | None = None,
) -> list[int]:
    """The batches to copy into one before the next step; [] for none.

    Rows come together only where that takes at most `spare_bytes` more than they have. One rebuild
    at a time, so that between two steps at most one batch is copied: first those that keep the
    memory of rows that left, then the largest. Rows of nearly the same length join first.
    """
    order = sorted(
        range(len(batches)), key=lambda i: (not batches[i].has_left, -len(batches[i].lengths))
    )
    for base in order:
        chosen = _companions(batches, base, token_bytes, weight_bytes, spare_bytes)
        if len(chosen) > 1 or batches[base].has_left:
            return chosen
    return []


def _companions(
    batches: Sequence[BatchShape],
    base: int,
    token_bytes: int,
    weight_bytes: int,
    spare_bytes: int | None,
) -> list[int]:
    """`base` and all that may share with it, which are of its own kind."""
    chosen = [base]
    lengths = list(batches[base].lengths)
    longest = max(lengths)
    kind = batches[base].is_constrained
    others = [i for i, b in enumerate(batches) if i != base and b.is_constrained == kind]
    for other in sorted(others, key=lambda i: abs(max(batches[i].lengths) - longest)):
        together = [*lengths, *batches[other].lengths]
        growth = growth_tokens([batches[i] for i in (*chosen, other)]) * token_bytes
        has_room = spare_bytes is None or growth <= spare_bytes
        if has_room and may_share(together, token_bytes, weight_bytes):
            chosen.append(other)
            lengths = together
    return chosen
