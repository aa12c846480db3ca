"""Who uses which model, so that none is unloaded under its users.

Counted on the event loop, looked at by the engine's thread, without a lock: a user counts itself
first and looks whether the model is there afterwards; who wants to unload it takes it out of what
is published first, and looks at the count afterwards. So at least one of the two sees the other.
"""

from __future__ import annotations

NEVER = float("-inf")


class Leases:
    """Counts by a model's key. Only the event loop changes them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._released: dict[str, float] = {}

    def take(self, key: str) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1

    def give_back(self, key: str, now: float) -> None:
        self._released[key] = now
        self._counts[key] -= 1

    def count(self, key: str) -> int:
        return self._counts.get(key, 0)

    def released(self, key: str) -> float:
        """When it was last given back."""
        return self._released.get(key, NEVER)
