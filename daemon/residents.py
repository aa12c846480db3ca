"""Which models are in memory: loaded when they are wanted, unloaded when nobody needs them.

Memory is reserved before a load. To make room, models that nobody uses give up their weights, the
longest unused first; then the trees of models that are not loaded go, likewise. A model in use
stays: who wants another one waits, and if that takes long, the one in use takes no new requests.
What is left of the memory is shared by those that are loaded.

Where there is a disk cache, a tree is written once its model has been idle, and before its weights
go; what is on disk leaves memory after weights that were idle for long. Who needs the memory of a
tree waits until it is written. Runs on the engine's thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from daemon.budget import Budget
from daemon.commands import Want
from daemon.errors import DaemonError, ModelDoesNotFit, ModelInUse
from daemon.idle_trees import IdleTrees
from daemon.idleness import Idleness
from daemon.leases import Leases
from daemon.resident import Resident, Workshop, unavailable
from daemon.sources import ModelSource
from daemon.stages import Idle

log = logging.getLogger(__name__)

FAIR_SECONDS = 10.0
"""How long a model may be wanted in vain before those in use take no more requests."""


@dataclass(frozen=True, slots=True)
class ResidencyLimits:
    """`keep_alive_seconds`: how long weights stay after the last use; None: for ever.

    `memory_bytes` for weights and trees together; None: no limit. `held` says why no model is to
    be loaded at the start, nor for a request; "" if there is no reason.
    """

    max_loaded: int = 1
    keep_alive_seconds: float | None = None
    memory_bytes: int | None = None
    held: str = ""


class Residents:
    """Every model that was ever wanted, by key; `first` is the one the daemon starts with.

    `trees`: what the idle ones have read, and what becomes of it.
    """

    def __init__(
        self, first: ModelSource, workshop: Workshop, leases: Leases, limits: ResidencyLimits
    ) -> None:
        self._shop = workshop
        self._limits = limits
        self._wants: list[Want] = []
        self._leaving: Resident | None = None
        self.first = Resident(first, workshop)
        if limits.held:
            self.first.hold(limits.held)
        else:
            self.first.want_loaded()
        self._residents = {first.key: self.first}
        disk, keep_alive = workshop.disk, limits.keep_alive_seconds
        save_after = None if disk is None else disk.options.idle_seconds
        self._idleness = Idleness(leases, self._wants, keep_alive, save_after)
        self.trees = IdleTrees(self._residents, self._idleness, disk, workshop.clock)

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._residents.values())

    @property
    def loaded(self) -> list[Resident]:
        """Those with weights in memory, the longest unused first."""
        return sorted((each for each in self if each.model is not None), key=self._idleness.used)

    @property
    def busy(self) -> list[Resident]:
        """Those that can do something now."""
        return [each for each in self if each.has_work]

    @property
    def primary(self) -> Resident:
        """The one that a status shows first: the last used of those that are loaded."""
        loaded = self.loaded
        return loaded[-1] if loaded else self.first

    def with_trees(self) -> list[Resident]:
        """Those whose trees can be looked into, the last used first."""
        found = [each for each in self if each.cache is not None]
        return sorted(
            found, key=lambda each: (each is self.primary, self._idleness.used(each)), reverse=True
        )

    def is_leaving(self, resident: Resident) -> bool:
        """Whether it is about to be unloaded."""
        return resident is self._leaving

    def is_overdue(self, resident: Resident, but_for: Want | None = None) -> bool:
        """Whether another model has been wanted for so long that this one has to end."""
        latest = self._shop.clock() - FAIR_SECONDS
        return any(
            want.since <= latest and want.source.key != resident.source.key
            for want in self._wants
            if but_for is None or want.since < but_for.since
        )

    def get(self, key: str) -> Resident:
        """The resident of that key; "" is the first's."""
        return self._residents[key] if key else self.first

    def load_first(self) -> None:
        if not self._limits.held:
            self._load(self.first)

    def want(self, want: Want) -> None:
        self._residents.setdefault(want.source.key, Resident(want.source, self._shop))
        self._wants.append(want)

    def forget(self, want: Want) -> None:
        if want in self._wants:
            self._wants.remove(want)
        self._keep_what_nobody_waits_for()

    def settle_wants(self) -> None:
        """Grant what can be granted now, in the order of asking."""
        for want in tuple(self._wants):
            try:
                is_settled = self._settle(want)
            except DaemonError as refusal:
                want.reply.fail(refusal)
                is_settled = True
            if is_settled and want in self._wants:
                self._wants.remove(want)
        self._keep_what_nobody_waits_for()

    def _keep_what_nobody_waits_for(self) -> None:
        if not self._wants:
            self.trees.keep()

    def unload(self, key: str) -> None:
        """Raises ModelInUse. One that is not loaded stays so."""
        resident = self._residents.get(key)
        if resident is not None and resident.model is not None and not self._unload(resident):
            raise ModelInUse(
                f"{resident.status.name} is in use; it can be unloaded when its requests have ended"
            )

    def expire(self, now: float) -> None:
        """Write what idle models have read, and unload those that are idle for too long."""
        self.trees.expire(now)
        for resident in self.loaded:
            if self._idleness.unload_due(resident) <= now:
                log.info("%s was idle for long and is unloaded", resident.status.name)
                if self._unload(resident):
                    self.trees.move_out(resident)
                    self.go_on_saving()

    def go_on_saving(self) -> None:
        """The disk has done something. Never raises: what goes wrong costs reading again."""
        try:
            if self.trees.go_on():
                self._share_memory()
        except Exception:
            log.exception("the disk cache broke")

    def look_again(self) -> None:
        """Somebody may have changed any tree."""
        for resident in self:
            resident.look_again()

    def names(self) -> dict[str, str]:
        """What the models are called that were loaded in this run, by identity."""
        return {each.status.identity: each.source.name or each.status.name for each in self}

    def idle(self) -> dict[str, Idle]:
        """How long each model has been idle, by key."""
        return {each.source.key: self._idleness.of(each) for each in self}

    def next_expiry(self) -> float:
        """When there is something to be done if nobody asks for anything; perhaps never."""
        times = [each.next_expiry() for each in self]
        times += [self._idleness.unload_due(each) for each in self.loaded]
        times.append(self.trees.next_expiry())
        now = self._shop.clock()
        times += [end for want in self._wants if (end := want.since + FAIR_SECONDS) > now]
        return min(times, default=math.inf)

    def reload_pause(self) -> float:
        """Seconds until a model that broke is to be loaded again."""
        return min(each.reload_pause() for each in self)

    def reload(self) -> None:
        """Load the model whose pause is the shortest again, if others left room for it meanwhile;
        else it comes back when it is asked for."""
        broken = min(self, key=lambda each: each.reload_pause())
        if self._fits(broken):
            self._load(broken)
        else:
            broken.set_aside()

    def recover(self, resident: Resident, error: Exception) -> None:
        resident.recover(error)
        self._share_memory()

    def stop(self) -> None:
        """Answer everybody, and have what was read written: the last used model's first."""
        for want in self._wants:
            want.reply.fail(unavailable(replace(self.first.status, state="closed")))
        self._wants.clear()
        for resident in self:
            resident.stop()
            resident.saving = None  # what its turns left is not in it
        for resident in sorted(self, key=self._idleness.used, reverse=True):
            resident.save()

    def shut(self) -> None:
        for resident in self:
            resident.shut()

    def _settle(self, want: Want) -> bool:
        """Whether there is an answer now. Raises what the answer is if it is no."""
        resident = self._residents[want.source.key]
        if resident.model is None:
            if resident.reload_pause() < math.inf and resident.status.state == "failed":
                raise unavailable(resident.status)
            if not self._make_room(resident):
                return False
            self._load(resident)
            if resident.model is None:
                raise unavailable(resident.status)
        elif self.is_overdue(resident, but_for=want):
            return False
        want.reply.send(resident.model)
        return True

    def _load(self, resident: Resident) -> None:
        self.trees.keep(resident)
        if resident.load() is None:
            self._share_memory()
        self._shop.tell(True)

    def _unload(self, resident: Resident) -> bool:
        """False if somebody has come to use it meanwhile."""
        self._leaving = resident
        self._shop.tell(True)  # from now on nobody finds it
        is_free = not self._idleness.is_used(resident)
        if is_free:
            resident.save()
            resident.unload()
        self._leaving = None
        self._share_memory()
        self._shop.tell(True)
        return is_free

    def _make_room(self, wanted: Resident) -> bool:
        """Whether `wanted` can be loaded now, after what nobody needs has gone.

        Raises ModelDoesNotFit if it cannot, whatever went.
        """
        limit = self._limits.memory_bytes
        if limit is not None and wanted.weight_bytes > limit:
            raise ModelDoesNotFit(
                f"{wanted.source.name} needs {wanted.weight_bytes:,} bytes of memory for its "
                f"weights; there are {limit:,}."
            )
        while not self._fits(wanted):
            if not self._give_way(wanted):
                return False
        return True

    def _fits(self, wanted: Resident) -> bool:
        loaded = self.loaded
        if len(loaded) >= self._limits.max_loaded:
            return False
        limit = self._limits.memory_bytes
        taken = sum(each.weight_bytes for each in loaded) + sum(each.tree_bytes for each in self)
        return limit is None or taken + wanted.weight_bytes <= limit

    def _give_way(self, wanted: Resident) -> bool:
        """Take something from memory; False if all that is left is needed."""
        for resident in self.loaded:
            if not self._idleness.is_used(resident) and self._unload(resident):
                return True
        if len(self.loaded) >= self._limits.max_loaded:
            return False
        for resident in sorted(self, key=lambda each: (each is wanted, self._idleness.used(each))):
            if resident.model is None and resident.has_tree:
                is_gone = self.trees.part_with(resident)
                if is_gone:  # while it is being written this is asked again and again
                    log.info("what %s read goes for %s", resident.source.name, wanted.source.name)
                return is_gone
        return False

    def _share_memory(self) -> None:
        """Give each loaded model its share of what weights and idle trees leave."""
        loaded = self.loaded
        weights = sum(each.weight_bytes for each in loaded)
        idle_trees = sum(each.tree_bytes for each in self if each.model is None)
        for resident in loaded:
            others = weights - resident.weight_bytes
            resident.set_budget(_share(len(loaded), others, idle_trees))


def _share(sharers: int, other_weights: int, idle_trees: int) -> Callable[[Budget], Budget]:
    def share(alone: Budget) -> Budget:
        if alone.max_bytes is None:
            return alone
        taken = idle_trees + (0 if alone.is_fixed else other_weights)
        return replace(alone, max_bytes=max(0, alone.max_bytes - taken) // sharers)

    return share
