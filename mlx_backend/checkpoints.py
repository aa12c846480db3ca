"""Checkpoints: the state of the layers that cannot be cut, after exactly n tokens.

Arrays of equal shape and type are stacked into one, so that a model of 48 recurrent layers keeps
a handful of them. A `CheckpointForm` says how the stacks make up the leaves' states; as a text it
goes with them to where they are kept, and nothing in such a text is run or imported: classes are
looked up in a closed table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_backend.device_arrays import DTYPE_NAMES, copied, on_host
from mlx_backend.host_arrays import HostArray
from mlx_backend.layers import WHOLE_CLASSES

CLASS_OF_NAME = {cache_class.__name__: cache_class for cache_class in WHOLE_CLASSES}


@dataclass(frozen=True, slots=True)
class LeafState:
    """What a whole leaf is after n tokens. `numbers` and `arrays` are as its class needs them."""

    cache_class: type
    numbers: tuple[int, ...]
    arrays: tuple[Any | None, ...]


@dataclass(frozen=True, slots=True)
class LeafForm:
    """A `LeafState` but for its arrays: which of them there are."""

    cache_class: type
    numbers: tuple[int, ...]
    presence: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class CheckpointForm:
    """What a checkpoint after `length` tokens is, but for its stacks.

    `places`: for each array of the leaves that is there, in order, (its stack, where in it).
    """

    length: int
    leaves: tuple[LeafForm, ...]
    places: tuple[tuple[int, int], ...]

    def text(self) -> str:
        leaves = [
            [leaf.cache_class.__name__, leaf.numbers, [int(is_set) for is_set in leaf.presence]]
            for leaf in self.leaves
        ]
        document = {"length": self.length, "leaves": leaves, "places": self.places}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> CheckpointForm:
        """Inverse of `text`. Raises ValueError for whatever `text` does not write."""
        try:
            document = json.loads(text)
            (length,) = _numbers([document["length"]])
            leaves = tuple(
                LeafForm(
                    CLASS_OF_NAME[name], _numbers(numbers), tuple(map(bool, _numbers(presence)))
                )
                for name, numbers, presence in document["leaves"]
            )
            places = tuple((stack, at) for stack, at in map(_numbers, document["places"]))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not the form of a checkpoint: {error!r}") from error
        return cls(length, leaves, places)


class MlxCheckpoint:
    """Implements `interface.Checkpoint`: stacks, and their form."""

    __slots__ = ("_form", "_stacks", "array_count", "length", "nbytes")

    def __init__(self, form: CheckpointForm, stacks: Sequence[Any]) -> None:
        """`stacks` are evaluated, and this checkpoint's own."""
        self.length = form.length
        self._form = form
        self._stacks = tuple(stacks)
        self.nbytes = sum(int(stack.nbytes) for stack in stacks)
        self.array_count = len(stacks)

    @classmethod
    def of(cls, length: int, states: Sequence[LeafState]) -> MlxCheckpoint:
        """A copy of every whole leaf's state after `length` tokens."""
        stacks, places = _stacked([a for state in states for a in state.arrays if a is not None])
        leaves = (
            LeafForm(state.cache_class, state.numbers, tuple(a is not None for a in state.arrays))
            for state in states
        )
        return cls(CheckpointForm(length, tuple(leaves), tuple(places)), stacks)

    def states(self) -> list[LeafState]:
        """The leaves' states; their arrays are lazy views of this checkpoint, to be copied."""
        views = iter([self._stacks[i][at : at + 1].squeeze(0) for i, at in self._form.places])
        return [
            LeafState(
                leaf.cache_class,
                leaf.numbers,
                tuple(next(views) if is_set else None for is_set in leaf.presence),
            )
            for leaf in self._form.leaves
        ]

    def described(self) -> str:
        return self._form.text()

    def host_arrays(self) -> tuple[HostArray, ...]:
        return tuple(HostArray(DTYPE_NAMES[s.dtype], (on_host(s),)) for s in self._stacks)


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise ValueError("not a list of integers")
    return tuple(values)


def _stacked(arrays: Sequence[Any]) -> tuple[list[Any], list[tuple[int, int]]]:
    """Copies of `arrays`, equals stacked; and for each array (which stack, where in it)."""
    alike: dict[Any, list[Any]] = {}
    order: dict[Any, int] = {}
    places = []
    for array in arrays:
        key = (tuple(array.shape), array.dtype)
        members = alike.setdefault(key, [])
        places.append((order.setdefault(key, len(order)), len(members)))
        members.append(array[None])
    stacks = [copied(members) for members in alike.values()]
    mx.eval(stacks)
    return stacks, places
