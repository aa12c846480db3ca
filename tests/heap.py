"""What is alive in this process, apart from what earlier tests have left behind."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


class Newborn:
    """Objects that were made since this was. Keeps the older ones alive, so that ids tell."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._older = self._all()

    def _all(self) -> dict[int, object]:
        gc.collect()
        return {id(thing): thing for thing in gc.get_objects() if type(thing) in self._kinds}

    def of(self, kind: type[T]) -> list[T]:
        """Those of exactly this kind, one of those that were named at the beginning."""
        assert kind in self._kinds
        return [thing for key, thing in self._all().items() if self._is_new(key, thing, kind)]

    def _is_new(self, key: int, thing: object, kind: type[T]) -> bool:
        return key not in self._older and type(thing) is kind
