"""A row as the backend holds it: its caches, alone or in a batch with others'."""

from __future__ import annotations

from mlx_backend.layers import CacheLayout, Caches
from mlx_backend.rows import buffers, reserve, rounded_room, state_bytes


class LiveRow:
    """Implements `interface.Row`: caches of its own, or a place in a batch's.

    `caches` is what the model takes, `index` the row's place in them, `sharers` how many rows
    account for them. `asked_room` counts where the layers keep no room.
    """

    __slots__ = (
        "asked_room",
        "caches",
        "index",
        "is_decoding",
        "is_released",
        "layout",
        "length",
        "sharers",
    )

    def __init__(self, layout: CacheLayout, caches: Caches, length: int, room: int) -> None:
        self.layout = layout
        self.caches = caches
        self.length = length
        self.asked_room = room
        self.index = 0
        self.sharers = 1
        self.is_decoding = False
        self.is_released = False

    @property
    def room(self) -> int:
        found = buffers(self.layout, self.caches)
        return self.asked_room if found is None else self.length + found.capacity - found.used

    @property
    def nbytes(self) -> int:
        return state_bytes(self.caches) // self.sharers

    def growth_bytes(self, room: int) -> int:
        """What `grow` would add, to the whole batch if the row shares one."""
        found = buffers(self.layout, self.caches)
        if found is None or room <= self.room:
            return 0
        wanted = rounded_room(found.used + room - self.length)
        return (wanted - found.capacity) * found.rows * self.layout.span_token_bytes

    def grow(self, room: int) -> None:
        """Make room for `room` tokens in all; whoever shares the batch has as much ahead."""
        found = buffers(self.layout, self.caches)
        if found is not None:
            reserve(self.layout, self.caches, found.used, found.used + room - self.length)
        self.asked_room = max(self.asked_room, room)

    def let_go(self) -> None:
        """Drop the arrays; those of a batch live on in the batch."""
        self.is_decoding = False
        self.is_released = True
        self.caches = []
