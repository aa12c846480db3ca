"""What the tree may hold."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.prefix_cache.nodes import TOKEN_BYTES, Totals
from daemon.prefix_cache.tombstones import Cause
from mlx_backend.interface import Span


@dataclass(slots=True)
class Limits:
    """`max_entries` None is no limit; live leaves that are no entries do not count for it."""

    max_entries: int | None
    max_bytes: int
    max_arrays: int

    def allow(self, totals: Totals) -> bool:
        return not (self.too_many(totals) or self.too_large(totals))

    def too_many(self, totals: Totals) -> bool:
        return self.max_entries is not None and totals.entries > self.max_entries

    def too_large(self, totals: Totals) -> bool:
        return totals.bytes > self.max_bytes or totals.arrays > self.max_arrays

    def broken_by(self, totals: Totals) -> Cause:
        """Which limit something has to go for; one is exceeded."""
        if totals.bytes > self.max_bytes:
            return Cause.BYTES
        return Cause.ARRAYS if totals.arrays > self.max_arrays else Cause.ENTRIES


def blocks_within(span: Span, max_bytes: int, max_arrays: int) -> int:
    """How many tokens of a span, in whole blocks from its start, fit together with their ids."""
    lengths = span.block_lengths()
    token_bytes = span.nbytes / span.length + TOKEN_BYTES
    block_arrays = span.array_count / len(lengths)
    kept = 0
    for count, length in enumerate(lengths, start=1):
        if (kept + length) * token_bytes > max_bytes or count * block_arrays > max_arrays:
            break
        kept += length
    return kept
