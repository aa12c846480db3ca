"""How long each model has had no request, and what that leads to.

In stages, each with its own time: what was read is written to the disk, then the weights leave
memory, and with them what is on disk by then. What happens in each is done in `residents`. Times
are the engine's clock's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from daemon.commands import Want
from daemon.leases import Leases
from daemon.resident import Resident
from daemon.stages import Idle, Stage


class Idleness:
    """`wants` is the list of those who wait for a model, seen as it changes."""

    def __init__(
        self,
        leases: Leases,
        wants: Sequence[Want],
        keep_alive_seconds: float | None,
        save_seconds: float | None,
    ) -> None:
        self._leases = leases
        self._wants = wants
        self._keep_alive_seconds = keep_alive_seconds
        self._save_seconds = save_seconds

    def is_used(self, resident: Resident) -> bool:
        """Whether somebody works with it; who waits for it does not yet."""
        key = resident.source.key
        waiting = sum(want.source.key == key for want in self._wants)
        return bool(resident.turns) or self._leases.count(key) > waiting

    def used(self, resident: Resident) -> float:
        """When it was used last; a request counts to its end."""
        return max(resident.used, self._leases.released(resident.source.key))

    def unload_due(self, resident: Resident) -> float:
        """When its weights are to go; perhaps never."""
        return self._due(resident, self._keep_alive_seconds, resident.model is not None)

    def save_due(self, resident: Resident) -> float:
        """When its tree is to be written; perhaps never, or it is being written."""
        is_to_come = resident.archive is not None and resident.saving is None
        return self._due(resident, self._save_seconds, is_to_come)

    def of(self, resident: Resident) -> Idle:
        """What to tell of it. A model that was never loaded has no stages."""
        since = None if self.is_used(resident) else self.used(resident)
        stages = []
        if resident.archive is not None and self._save_seconds is not None:
            stages.append(Stage("saved", self._save_seconds, resident.is_saved))
        if resident.cache is not None:
            is_out = True if resident.model is None else None
            stages.append(Stage("unloaded", self._keep_alive_seconds, is_out))
        return Idle(since, tuple(stages))

    def _due(self, resident: Resident, seconds: float | None, is_to_come: bool) -> float:
        if seconds is None or not is_to_come or self.is_used(resident):
            return math.inf
        return self.used(resident) + seconds
