"""A model on this machine that can be loaded, as the engine is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlx_backend.interface import LoadedModel


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`key` tells models apart; `name` is what clients call it.

    `load` runs on the engine's thread. `weight_bytes` is what it will take there, as its files
    tell; 0 if nobody knows.
    """

    key: str
    load: Callable[[], LoadedModel]
    name: str = ""
    weight_bytes: int = 0
