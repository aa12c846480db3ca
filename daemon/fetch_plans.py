"""What has to be read from disk for a prompt, given what is there and what is in memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from daemon.disk_cache.files import StoredFile
from daemon.disk_cache.index import Found
from daemon.prefix_cache.checkpoints import EntryKind

UNNOTICED_SECONDS = 0.05
"""What takes the disk no longer is not weighed against the model: both rates are estimates."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one file gives of a prompt: its tokens [start, stop), or, where those are none, the
    checkpoint after them."""

    file: StoredFile
    start: int
    stop: int

    @property
    def is_checkpoint(self) -> bool:
        return self.start == self.stop


@dataclass(frozen=True, slots=True)
class Plan:
    """`pieces` are what memory lacks for the first `length` tokens of a prompt to be restored, in
    their order; without them it is `held`. Some of their files may be `pending`."""

    held: int
    length: int
    pieces: tuple[Piece, ...]
    pending: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(piece.file.name for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        """Of the files; of those that are not written yet nobody knows."""
        return sum(piece.file.nbytes for piece in self.pieces)

    @property
    def tokens(self) -> int:
        """How many tokens' state is read in."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def kind(self) -> EntryKind:
        """What is restored then: from a checkpoint, what that was; else a part of a prompt."""
        label = self.pieces[-1].file.label if self.pieces else ""
        return EntryKind(label) if label in set(EntryKind) else EntryKind.PARTIAL

    @property
    def gain(self) -> int:
        """Tokens that need not be read by the model then."""
        return self.length - self.held


def plan(found: Found, known: int, held: int) -> Plan:
    """`known` tokens' spans are in memory, from `held` of them a row can be restored."""
    ends = [*(block.start for block in found.blocks), found.length]
    pieces = [
        Piece(block, max(start, known), min(block.end, stop))
        for block, (start, stop) in zip(found.blocks, pairwise(ends), strict=True)
        if known < min(block.end, stop)
    ]
    if found.checkpoint is not None:
        pieces.append(Piece(found.checkpoint, found.length, found.length))
    pending = {file.name for file in found.pending}
    names = {piece.file.name for piece in pieces}
    return Plan(held, found.length, tuple(pieces), frozenset(pending & names))


def is_worth(wanted: Plan, bytes_per_second: float | None, tokens_per_second: float | None) -> bool:
    """Whether the disk gives it sooner than the model reads it; a rate that nobody knows is good
    in the disk's favour."""
    if not bytes_per_second or not tokens_per_second:
        return True
    seconds = wanted.nbytes / bytes_per_second
    return seconds < max(UNNOTICED_SECONDS, wanted.gain / tokens_per_second)
