"""A model's idleness as others see it: how long it has lasted, and what it leads to, and when.

Said once, right at whatever time it is read: the engine sleeps, and time passes. Times are the
engine's clock's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemon.disk_status import StageStatus
from daemon.status import ModelStatus


@dataclass(frozen=True, slots=True)
class Stage:
    """`comes`: None as long as it is still to come, then whether it was reached."""

    name: str
    after_seconds: float | None
    comes: bool | None = None

    def status(self, idle_seconds: float) -> StageStatus:
        left = 0.0 if self.comes else None
        if self.comes is None and self.after_seconds is not None:
            left = max(0.0, self.after_seconds - idle_seconds)
        return StageStatus(self.name, self.after_seconds, left, bool(self.comes))


@dataclass(frozen=True, slots=True)
class Idle:
    """A model's idleness for whoever looks at it later; `since` is None while it is used."""

    since: float | None
    stages: tuple[Stage, ...] = ()

    def told(self, status: ModelStatus, now: float) -> ModelStatus:
        """The status as it is at that time, if nothing happens until then."""
        seconds = 0.0 if self.since is None else max(0.0, now - self.since)
        stages = tuple(stage.status(seconds) for stage in self.stages)
        return replace(status, idle_seconds=seconds, stages=stages)
