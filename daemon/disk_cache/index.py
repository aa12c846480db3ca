"""Which of one model's tokens are on disk: a tree of block files and of checkpoints, in memory.

Pure: what is on disk is told by `add` and `remove`. Belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daemon.disk_cache.files import StoredFile
from mlx_backend.messages import CacheKind, TokenIds


@dataclass(frozen=True, slots=True)
class Found:
    """What can be restored of a prompt: `length` tokens by `blocks`, which cover them from the
    first token on, each from its start to its end or to where the next one begins; `checkpoint`
    where the model needs one. `pending`: those of them that are not written yet."""

    length: int = 0
    blocks: tuple[StoredFile, ...] = ()
    checkpoint: StoredFile | None = None
    pending: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far a sequence is covered by blocks: `length` tokens, the last of them in `last`;
    `checkpoints`: the offsets of the checkpoints on its way."""

    length: int = 0
    last: StoredFile | None = None
    checkpoints: frozenset[int] = frozenset()


class DiskIndex:
    def __init__(self, identity: str) -> None: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def file_count(self) -> int: ...

    def add(self, file: StoredFile, *, is_written: bool, used_at: float = 0.0) -> bool:
        """Put a file in its place; False if what it stands on is not there, or it is there."""

    def written(self, file: StoredFile, nbytes: int) -> None:
        """A pending file is on disk now, and so large."""

    def remove(self, name: str) -> tuple[StoredFile, ...]:
        """Take a file out, with all that stands on it; what was taken, the deepest first."""

    def find(self, tokens: TokenIds, kind: CacheKind, most: int) -> Found:
        """What can be restored of `tokens`, `most` tokens at most. Touches nothing."""

    def coverage(self, tokens: TokenIds) -> Coverage:
        """How far `tokens` are covered, pending files included. Touches nothing."""

    def touch(self, files: Sequence[StoredFile]) -> None:
        """They were used just now, and all that they stand on."""

    def victims(self) -> tuple[StoredFile, ...]:
        """Written files that nothing stands on, the least recently used first."""

    def check(self) -> None:
        """Walk every invariant; AssertionError names the one that is broken."""
