"""What idle models have read: written to the disk in time, and out of memory once it is there.

What has been idle in the tree of a busy model is written, too: it is what goes first when memory is
needed, and then at once, more of it perhaps than may wait for the writer.

Which models are idle is known to `idleness`, how a tree is written to `saving`; whose memory is
needed is decided in `residents`. Runs on the engine's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from daemon.disk_tier import DiskTier
from daemon.idleness import Idleness
from daemon.resident import Resident
from daemon.saving import Saving


class IdleTrees:
    """`residents` are all models by key, seen as they change. Without a disk nothing is done."""

    def __init__(
        self,
        residents: Mapping[str, Resident],
        idleness: Idleness,
        disk: DiskTier | None,
        clock: Callable[[], float],
    ) -> None:
        self._residents = residents
        self._idleness = idleness
        self._disk = disk
        self._clock = clock
        self._ahead_at = clock()
        self._moving_out: set[Resident] = set()
        self._parting: dict[Resident, float] = {}

    def expire(self, now: float) -> None:
        """Have those written that were idle for long enough; drop what others waited for so long
        that they wait no more until it is written."""
        for resident in self._residents.values():
            if self._idleness.save_due(resident) <= now:
                resident.save()
        self._save_ahead(now)
        for resident, until in list(self._parting.items()):
            if until <= now:
                self._drop(resident)

    def _save_ahead(self, now: float) -> None:
        """Only looked at while there is work: nobody wakes up for it."""
        if self._disk is None or now - self._ahead_at < self._disk.options.idle_seconds:
            return
        self._ahead_at = now
        for resident in self._residents.values():
            if resident.turns:
                resident.save_ahead(self._disk.options.idle_seconds)

    def next_expiry(self) -> float:
        due = [self._idleness.save_due(each) for each in self._residents.values()]
        return min([*due, *self._parting.values()], default=math.inf)

    def go_on(self) -> bool:
        """The disk has done something: hand over more, and take out of memory what is there now.

        Whether anything left memory.
        """
        for saving in self._savings():
            saving.go_on()
        settled = [each for each in self._moving_out if each.is_saved is not None]
        for resident in settled:
            self._moving_out.discard(resident)
            resident.move_out()
        return bool(settled)

    @property
    def can_go_on(self) -> bool:
        """Whether more can be handed over without waiting for the disk."""
        return any(saving.can_go_on for saving in self._savings())

    @property
    def is_saving(self) -> bool:
        """Whether some tree is on its way to the disk."""
        return any(not saving.is_over for saving in self._savings())

    def give_up(self) -> None:
        """What is being saved is not to be written to its end, nor begun anew before its model is
        used again."""
        for saving in self._savings():
            saving.give_up()

    def _savings(self) -> list[Saving]:
        """That of the model used last comes first, and what is saved ahead last."""
        by_use = sorted(self._residents.values(), key=self._idleness.used, reverse=True)
        all_of_them = [*(each.saving for each in by_use), *(each.saving_ahead for each in by_use)]
        return [saving for saving in all_of_them if saving is not None]

    def move_out(self, resident: Resident) -> None:
        """Its weights go after long idleness: so does its tree, once all of it is on disk."""
        if self._disk is not None:
            self._moving_out.add(resident)

    def part_with(self, resident: Resident) -> bool:
        """Drop a tree whose memory others need; False while it is being written."""
        resident.save()
        if self._disk is not None and resident.saving is not None and not resident.saving.is_over:
            self._parting.setdefault(resident, self._clock() + self._disk.options.save_seconds)
            return False
        self._drop(resident)
        return True

    def keep(self, resident: Resident | None = None) -> None:
        """A model is used again, or (None) nobody needs memory any more: nothing is dropped."""
        if resident is None:
            self._parting.clear()
            return
        self._parting.pop(resident, None)
        self._moving_out.discard(resident)

    def _drop(self, resident: Resident) -> None:
        self.keep(resident)
        resident.drop_tree()
