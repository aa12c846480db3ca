"""What one file of the disk cache is: a block of tokens' state, or a checkpoint.

A block covers at most `BLOCK_TOKENS` tokens and stands on the blocks of all tokens before it: on
its `parent`, wherever in it the two part, and so on down to the first token. A checkpoint stands
on the block that holds its last token. A file's name is a hash of the model's identity and of all
tokens up to its end, so that what forks share is one file, and what a conversation goes on with
never changes what is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from mlx_backend.host_arrays import HostArray
from mlx_backend.messages import TokenIds

FORMAT_VERSION = 1
"""Raise when a file comes to mean something else: files of other versions are never read."""

BLOCK_TOKENS = 1024


class FileKind(StrEnum):
    BLOCK = "block"
    CHECKPOINT = "checkpoint"


def no_tokens() -> TokenIds:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile:
    """A file without its arrays; known by identity, `name` is unique within a model's identity.

    key: hex digest of the identity and all tokens up to `end` (see `KeyChain`).
    parent: a block's: the key of the block that holds token `start - 1`, "" at the very start; a
        checkpoint's: the key of the block that holds token `end - 1`.
    start, end: tokens; a checkpoint has start == end.
    tokens: a block's own ids [start, end), int32; none for a checkpoint.
    label: what a checkpoint was captured as (`EntryKind`).
    nbytes: of the whole file; 0 until it is written.
    """

    identity: str
    kind: FileKind
    key: str
    parent: str
    start: int
    end: int
    tokens: TokenIds = field(default_factory=no_tokens, repr=False)
    label: str = ""
    nbytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.key}.{self.kind}.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a file holds beside its description. `described` is a checkpoint's own text."""

    arrays: tuple[HostArray, ...]
    described: str = ""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class KeyChain:
    """Keys of longer and longer prefixes of one sequence of tokens. The digest is SHA-256."""

    def __init__(self, identity: str) -> None:
        self._digest = hashlib.sha256(identity.encode() + b"\0")

    def extend(self, tokens: TokenIds) -> str:
        """The key of everything up to the end of `tokens`, which follow what came before."""
        self._digest.update(np.ascontiguousarray(tokens, dtype="<i4").tobytes())
        return self._digest.hexdigest()[:40]

    def copy(self) -> KeyChain:
        other = KeyChain("")
        other._digest = self._digest.copy()
        return other


def key_of(identity: str, pieces: Iterable[TokenIds]) -> str:
    """The key of `pieces`, end to end."""
    chain, key = KeyChain(identity), ""
    for piece in pieces:
        key = chain.extend(piece)
    return key
