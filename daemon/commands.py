"""What crosses between the event loop and the engine's thread: commands in, published values out.

Frozen throughout. Events take a way of their own (`deliveries`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from daemon.budget import Budget
from daemon.deliveries import Generation
from daemon.disk_cache.jobs import Result
from daemon.disk_tier import DiskTier
from daemon.inspection import Question
from daemon.records import Record
from daemon.replies import Reply
from daemon.sources import ModelSource
from daemon.stages import Idle
from daemon.status import EngineStatus, ModelStatus
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


@dataclass(frozen=True, slots=True, eq=False)
class Want:
    """Load a model, as soon as there is room, and say so. Whoever wants it has a lease already."""

    source: ModelSource
    since: float
    reply: Reply


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody waits for it any more."""

    want: Want


@dataclass(frozen=True, slots=True)
class Released:
    """Some model has a user less: where none is left it can make room, and its time begins."""


@dataclass(frozen=True, slots=True)
class Unload:
    """Give a model's weights back now, if nobody uses it."""

    key: str
    reply: Reply


@dataclass(frozen=True, slots=True)
class DiskDone:
    """One of the disk's threads has done a job."""

    result: Result


@dataclass(frozen=True, slots=True, eq=False)
class AskDisk:
    """A question to the disk tier, which is told what models are called, by their identities.

    `is_clearing`: it deletes what is there, so what is being saved is not wanted there either.
    """

    ask: Callable[[DiskTier, Mapping[str, str]], object]
    reply: Reply
    is_clearing: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """End every request, close the backends, end the thread."""


Command: TypeAlias = (
    Start | Cancel | Ask | Want | Forget | Released | Unload | DiskDone | AskDisk | Close
)


@dataclass(frozen=True, slots=True)
class Available:
    """A model that takes requests, and what its rows may take.

    `is_closing`: another model has waited for long, so only who has a lease already gets in.
    """

    model: LoadedModel
    budget: Budget | None = None
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """What other threads may see. `models` are those that take requests, by key; `has_trees`:
    something was loaded at some time, so that there is somebody to ask. `idle`: how long each model
    has been, by key, for whoever reads `status` later."""

    status: EngineStatus
    models: Mapping[str, Available] = field(default_factory=dict)
    has_trees: bool = False
    records: tuple[Record, ...] = ()
    idle: Mapping[str, Idle] = field(default_factory=dict)

    def told(self, model: ModelStatus, now: float) -> ModelStatus:
        """A model's status as it is at that time."""
        idle = self.idle.get(model.key)
        return model if idle is None else idle.told(model, now)
