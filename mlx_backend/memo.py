"""A bounded memo that any thread may use without a lock.

Two generations: what is used moves to the young one; when that has half of the room, the old one
is dropped and the young one takes its place. So what was used lately stays, each call is a few
dict operations (atomic under the GIL), and a race can only cost a recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Keeps values of at most about `max_size` in all, as `size_of` counts them."""

    def __init__(self, max_size: int, size_of: Callable[[Key, Value], int] | None = None) -> None:
        self._half = max(1, max_size // 2)
        self._size_of = size_of or (lambda key, value: 1)
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}
        self._young_size = 0

    def get(self, key: Key) -> Value | None:
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        size = self._size_of(key, value)
        if self._young_size + size > self._half:
            self._old, self._young, self._young_size = self._young, {}, 0
        self._young[key] = value
        self._young_size += size
