"""What crosses between the event loop and the engine's thread: commands in, published values out.

Frozen throughout. Events take a way of their own (`deliveries`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from daemon.budget import Budget
from daemon.deliveries import Generation
from daemon.inspection import Question
from daemon.records import Record
from daemon.status import EngineStatus
from mlx_backend.interface import LoadedModel


@dataclass(frozen=True, slots=True)
class Start:
    generation: Generation
    arrived: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request. `is_whole`: its answer is; whoever asked for it had all it wanted."""

    generation: Generation
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    question: Question


@dataclass(frozen=True, slots=True)
class Close:
    """End every request, close the backend, end the thread."""


Command: TypeAlias = Start | Cancel | Ask | Close


@dataclass(frozen=True, slots=True)
class Published:
    """What other threads may see. `model` and `budget` are there while the state is ready only."""

    status: EngineStatus
    model: LoadedModel | None = None
    budget: Budget | None = None
    records: tuple[Record, ...] = ()
