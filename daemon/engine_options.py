"""How the engine works, whichever models it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daemon.disk_tier import DiskOptions
from daemon.inference import ReadingPolicy
from daemon.prefix_cache.checkpoints import PromptEnd
from daemon.prefix_cache.policies import (
    ByFunction,
    ByOptions,
    CheckpointPolicy,
    OffsetsFunction,
)
from daemon.resident import RELOAD_PAUSES
from daemon.residents import ResidencyLimits
from daemon.sessions import Sessions


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`max_queued` requests may wait beside the `max_concurrent` that run. `checkpoint_offsets`
    replaces the two options before it. `reload_pauses`: seconds before a model that broke is
    loaded again, each time that it broke. `disk`: None keeps what was read in memory only."""

    chunk_tokens: int = 2048
    max_concurrent: int = 8
    max_queued: int = 64
    prompt_end: str = "every"
    checkpoint_interval: int | None = None
    checkpoint_offsets: OffsetsFunction | None = None
    max_sessions: int = 64
    session_idle_seconds: float = 3600.0
    residency: ResidencyLimits = ResidencyLimits()  # noqa: RUF009  (frozen)
    reload_pauses: Sequence[float] = RELOAD_PAUSES
    disk: DiskOptions | None = None

    @property
    def reading(self) -> ReadingPolicy:
        checkpoints: CheckpointPolicy = ByOptions(
            PromptEnd(self.prompt_end), self.checkpoint_interval
        )
        if self.checkpoint_offsets is not None:
            checkpoints = ByFunction(self.checkpoint_offsets)
        return ReadingPolicy(self.chunk_tokens, self.max_concurrent, checkpoints)

    def new_sessions(self) -> Sessions:
        return Sessions(max_sessions=self.max_sessions, idle_seconds=self.session_idle_seconds)
