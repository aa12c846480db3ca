"""The scripted model's state: spans and checkpoints that hold the very token ids they stand for.

On the host, too, they carry their ids, so that whatever was mixed up on its way is seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlx_backend.host_arrays import HostArray

SPAN_TOKEN_BYTES = 16
CHECKPOINT_BYTES = 1_000


@dataclass(frozen=True)
class FakeSpan:
    """Implements `interface.Span`; `blocks` are tuples of token ids."""

    blocks: tuple[tuple[int, ...], ...]
    block_tokens: int = 1024
    token_bytes: int = SPAN_TOKEN_BYTES

    @classmethod
    def of(
        cls, tokens: Iterable[int], block_tokens: int = 1024, token_bytes: int = SPAN_TOKEN_BYTES
    ) -> FakeSpan:
        ids = tuple(int(t) for t in tokens)
        blocks = tuple(ids[i : i + block_tokens] for i in range(0, len(ids), block_tokens))
        return cls(blocks, block_tokens, token_bytes)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(t for block in self.blocks for t in block)

    @property
    def length(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def nbytes(self) -> int:
        return self.length * self.token_bytes

    @property
    def array_count(self) -> int:
        return len(self.blocks) if self.token_bytes else 0

    def block_lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.blocks))

    def split(self, at: int) -> tuple[FakeSpan, FakeSpan]:
        assert 0 < at < self.length
        head: list[tuple[int, ...]] = []
        tail: list[tuple[int, ...]] = []
        start = 0
        for block in self.blocks:
            cut = at - start
            if cut > 0:
                head.append(block[:cut])
            if cut < len(block):
                tail.append(block[max(cut, 0) :])
            start += len(block)
        return self._with(head), self._with(tail)

    def join(self, after: FakeSpan) -> FakeSpan:
        seam = self.blocks[-1] + after.blocks[0]
        if len(seam) > self.block_tokens:
            return self._with([*self.blocks, *after.blocks])
        return self._with([*self.blocks[:-1], seam, *after.blocks[1:]])

    def host_arrays(self, start: int, stop: int) -> tuple[HostArray, ...]:
        """Each token's `token_bytes` bytes begin with its id."""
        assert 0 <= start < stop <= self.length
        if not self.token_bytes:
            return ()
        parts, first = [], 0
        for block in self.blocks:
            ids = block[max(0, start - first) : max(0, stop - first)]
            if ids:
                parts.append(bytes_of(ids, self.token_bytes))
            first += len(block)
        return (HostArray("U8", tuple(parts)),)

    def _with(self, blocks: list[tuple[int, ...]]) -> FakeSpan:
        return FakeSpan(tuple(blocks), self.block_tokens, self.token_bytes)


def bytes_of(tokens: Sequence[int], token_bytes: int) -> NDArray[np.uint8]:
    """(1, 1, tokens, token_bytes), with as much of each id as there is room for."""
    ids = np.asarray(tokens, dtype="<i4").view(np.uint8).reshape(1, 1, -1, 4)
    state = np.zeros((1, 1, len(tokens), token_bytes), dtype=np.uint8)
    state[..., :4] = ids[..., :token_bytes]
    return state


def tokens_of(state: NDArray[np.uint8]) -> list[int]:
    """Inverse of `bytes_of`, where there were four bytes of each."""
    ids = np.ascontiguousarray(state[0, 0, :, :4]).view("<i4")
    return [int(token) for token in ids.ravel()]


@dataclass(frozen=True)
class FakeCheckpoint:
    """Implements `interface.Checkpoint`: the state after exactly these tokens."""

    tokens: tuple[int, ...]
    nbytes: int = CHECKPOINT_BYTES
    array_count: int = 2

    @property
    def length(self) -> int:
        return len(self.tokens)

    def described(self) -> str:
        return json.dumps({"nbytes": self.nbytes})

    def host_arrays(self) -> tuple[HostArray, ...]:
        """The token ids, whatever `nbytes` says."""
        return (HostArray("I32", (np.asarray(self.tokens, dtype="<u4"),)),)
