"""Arrays as the host's memory: how state leaves the device for a file, and comes back.

Bits, not numbers: a part is a view of whatever unsigned integer type has the width of the array's
own type, so that what comes back equals what left in every bit. No mlx here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOKEN_AXIS = 2
"""The axis that parts follow one another along; everything else of their shapes is equal."""


@dataclass(frozen=True, slots=True, eq=False)
class HostArray:
    """One array. `dtype` is its type as safetensors names it (F32, BF16, U32 …).

    `parts` lie end to end along `TOKEN_AXIS`; an array that has no such axis is one part. Those
    that were exported are views of device memory: immutable, kept alive by the views, to be
    dropped on the thread that owns the arrays.
    """

    dtype: str
    parts: tuple[NDArray[Any], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        if len(self.parts) == 1:
            return tuple(first)
        tokens = sum(part.shape[TOKEN_AXIS] for part in self.parts)
        return (*first[:TOKEN_AXIS], tokens, *first[TOKEN_AXIS + 1 :])

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.parts[0].itemsize

    def tokens(self, start: int, stop: int) -> HostArray:
        """The tokens [start, stop) of it, which are some; views, no copies."""
        parts, first = [], 0
        for part in self.parts:
            length = part.shape[TOKEN_AXIS]
            left, right = max(start - first, 0), min(stop - first, length)
            if left < right:
                parts.append(part[:, :, left:right])
            first += length
        return HostArray(self.dtype, tuple(parts))

    def joined(self) -> NDArray[Any]:
        """All of it as one contiguous array; a copy unless it is that already."""
        whole = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts, TOKEN_AXIS)
        return np.ascontiguousarray(whole)

    def copy_to(self, memory: NDArray[Any]) -> None:
        """Write its bits into `memory`, an array of its shape and of integers of their width."""
        places = [memory]
        if len(self.parts) > 1:
            ends = np.cumsum([part.shape[TOKEN_AXIS] for part in self.parts])
            places = np.split(memory, ends[:-1], TOKEN_AXIS)
        for place, part in zip(places, self.parts, strict=True):
            np.copyto(place, part.view(memory.dtype))


def end_to_end(pieces: Sequence[Sequence[HostArray]]) -> tuple[HostArray, ...]:
    """The arrays of spans that follow one another, as those of one span.

    Each piece has the same arrays in the same order.
    """
    return tuple(
        HostArray(arrays[0].dtype, tuple(part for array in arrays for part in array.parts))
        for arrays in zip(*pieces, strict=True)
    )
