"""One model on the engine's thread: its weights while they are loaded, and what outlives them.

The prefix tree and the sessions belong to the model's identity, not to its weights: a model that
is unloaded and loaded again goes on from what was read before. A model that breaks is loaded again
by itself, after pauses that grow; its neighbours do not notice. Which model may be loaded when is
decided in `residents`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from daemon.archive import Archive
from daemon.budget import Budget
from daemon.commands import Cancel, Start
from daemon.deliveries import Outbox
from daemon.disk_cache.jobs import Result
from daemon.disk_tier import DiskTier
from daemon.errors import ModelUnavailable
from daemon.generation import Failed, Usage
from daemon.inference import Inference, ReadingPolicy
from daemon.inspection import Inspection
from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Records, model_status
from daemon.saving import Saving
from daemon.sessions import Sessions
from daemon.sources import ModelSource
from daemon.status import CacheStatus, ModelStatus
from daemon.turns import Phase, Turn
from mlx_backend.errors import BackendError, StepFailed
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import ModelInfo

log = logging.getLogger(__name__)

RETRY_SECONDS = 5
RELOAD_PAUSES: tuple[float, ...] = (0.0, 1.0, 5.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What every model is served with. `tell` posts events and status, at once if it is told."""

    make_cache: Callable[[ModelInfo], PrefixCache]
    make_budget: Callable[[ModelInfo], Budget]
    make_sessions: Callable[[], Sessions]
    policy: ReadingPolicy
    records: Records
    outbox: Outbox
    tell: Callable[[bool], None]
    clock: Callable[[], float]
    reload_pauses: Sequence[float] = RELOAD_PAUSES
    disk: DiskTier | None = None


class Resident:
    """`cache` is there from the first load on. `used` is when it last had a request.

    `saving`: its tree's way to the disk, from the time that it has been idle for long enough to
    the next request. `saving_ahead`: that of what has been idle in the tree of a busy model.
    """

    def __init__(self, source: ModelSource, workshop: Workshop) -> None:
        self.source = source
        self.status = ModelStatus("unloaded", name=source.name, key=source.key)
        self.model: LoadedModel | None = None
        self.inference: Inference | None = None
        self.cache: PrefixCache | None = None
        self.archive: Archive | None = None
        self.saving: Saving | None = None
        self.saving_ahead: Saving | None = None
        self.sessions = workshop.make_sessions()
        self.used = workshop.clock()
        self._shop = workshop
        self._identity = ""
        self._was_servable = False
        self._failed_loads = 0
        self._is_to_be_loaded_again = False
        self._arrivals = 0
        self._alone: Budget | None = None
        self._dropped_bytes = 0

    @property
    def turns(self) -> Sequence[Turn]:
        return self.inference.turns if self.inference is not None else ()

    @property
    def weight_bytes(self) -> int:
        """What its weights take, or will take."""
        return self.source.weight_bytes if self.model is None else self.model.info.weight_bytes

    @property
    def tree_bytes(self) -> int:
        """What was dropped counts as long as it may be on its way to the disk."""
        if self.cache is not None:
            return self.cache.status().bytes
        disk = self._shop.disk
        return 0 if disk is None else min(self._dropped_bytes, disk.pending_bytes)

    @property
    def has_tree(self) -> bool:
        """Whether there is anything in memory that it has read."""
        return self.cache is not None and self.tree_bytes > 0

    @property
    def is_saved(self) -> bool | None:
        """Whether all of its tree is on disk; None as long as that is to come."""
        return self.saving.is_whole if self.saving is not None and self.saving.is_over else None

    @property
    def budget(self) -> Budget | None:
        return None if self.inference is None else self.inference.rows.budget

    def set_budget(self, share: Callable[[Budget], Budget]) -> None:
        """Let rows and tree have what `share` makes of what they would have alone."""
        if self.inference is not None and self._alone is not None:
            self.inference.rows.budget = share(self._alone)
            self.inference.rows.settle()

    @property
    def has_work(self) -> bool:
        """Whether it can do something now. A turn may have to wait for the disk."""
        return self.inference is not None and self.inference.has_work

    def hear_disk(self, result: Result) -> None:
        """A disk thread has done something that turns may wait for."""
        if self.inference is not None:
            self.inference.fetches.heard(result)

    def expire(self, now: float) -> None:
        """Forget sessions that have been idle for too long; let nobody wait in vain."""
        self.sessions.expire(now)
        if self.inference is not None:
            self.inference.fetches.expire(now)

    def next_expiry(self) -> float:
        """When that has something to do next; perhaps never."""
        sessions = self.sessions.next_expiry()
        waits = math.inf if self.inference is None else self.inference.fetches.next_expiry()
        return waits if sessions is None else min(sessions, waits)

    def work(self) -> None:
        """One token for each decoding row, and one chunk. Raises what breaks."""
        assert self.inference is not None, "busy without a model"
        self.inference.decode_step()
        self._shop.tell(False)  # a chunk may take long: tokens do not wait for it
        self.inference.read_chunk()
        self._shop.tell(False)

    def start(self, start: Start) -> None:
        generation = start.generation
        self.used, self.saving = self._shop.clock(), None
        if self.inference is None:
            usage = Usage(len(generation.request.prompt))
            self._shop.outbox.put(generation, Failed(unavailable(self.status), usage))
            return
        self._arrivals += 1
        session = self.sessions.open(generation.request, self._shop.clock())
        self.inference.add(Turn(generation, self._arrivals, start.arrived, session))

    def cancel(self, cancel: Cancel) -> bool:
        """Whether the request was this model's."""
        for turn in self.turns:
            if turn.generation is cancel.generation and self.inference is not None:
                self.inference.cancel(turn, is_whole=cancel.is_whole)
                return True
        return False

    def inspection(self) -> Inspection | None:
        """What can be looked at: there is nothing before the first load."""
        if self.cache is None:
            return None
        now = self._shop.clock()
        return Inspection(self.cache, self.sessions, self._shop.records, self.status, now)

    def load(self) -> Exception | None:
        """Load it; what went wrong, if anything did."""
        self.status = replace(self.status, state="loading")
        self._shop.tell(True)
        try:
            self._install(self.source.load())
        except Exception as error:
            self._note_failed_load(error)
            return error
        return None

    def _note_failed_load(self, error: Exception) -> None:
        is_meant = isinstance(error, BackendError)  # then its words say all
        log.error("the model cannot be loaded: %s", error, exc_info=not is_meant)
        self._failed_loads += 1
        if is_meant and not self._was_servable:
            self._is_to_be_loaded_again = False  # it will be no better next time
        self.status = replace(self.status, state="failed", error=in_words(error))

    def _install(self, model: LoadedModel) -> None:
        info, shop = model.info, self._shop
        if self.cache is None or self._identity != info.identity:
            self.cache = shop.make_cache(info)
            self._identity = info.identity
            self.sessions.attach(self.cache)
            self.saving = self.saving_ahead = None
            self.archive = None
            if shop.disk is not None and not info.disk_refusal:
                self.archive = Archive(shop.disk, info.identity, info.cache_kind)
                self.cache.watch(self.archive.save)
        self._alone = shop.make_budget(info)
        self.inference = Inference(
            model,
            self.cache,
            self._alone,
            shop.policy,
            self.sessions,
            shop.records,
            shop.outbox,
            lambda: shop.tell(True),
            shop.clock,
            self.archive,
        )
        self.model = model
        self.status = replace(model_status(info), key=self.source.key)
        self._failed_loads = 0
        self._was_servable = self._is_to_be_loaded_again = True

    def unload(self) -> None:
        """Give the weights back and keep the tree. Nothing may be running."""
        assert not self.turns, "a model was unloaded under a running request"
        self.inference = None
        self._is_to_be_loaded_again = False
        self._close_backend()
        self.status = replace(self.status, state="unloaded")

    def save(self) -> None:
        """Begin to have what was read written, as far as it is not on disk; see `Saving`."""
        disk = self._shop.disk
        self.saving_ahead = None
        if self.saving is None and self.cache and self.archive and disk:
            self.saving = Saving(self.cache, self.archive, disk)
            self.saving.go_on()

    def save_ahead(self, idle_seconds: float) -> None:
        """The same of what was not used for so long, though others use the model."""
        disk = self._shop.disk
        if self.cache and self.archive and disk:
            self.saving_ahead = Saving(self.cache, self.archive, disk, idle_seconds)

    def look_again(self) -> None:
        """The tree may have been changed by somebody: what is being saved of it is not that."""
        self.saving_ahead = None
        if self.saving is not None and not self.saving.is_over:
            self.saving = None

    def move_out(self) -> None:
        """Give back what was read, too, if all of it is on disk."""
        cache, archive = self.cache, self.archive
        if self.model is not None or cache is None or archive is None or not self.is_saved:
            return
        if all(archive.holds(kept) for kept in cache.states()):
            cache.move_out()

    def drop_tree(self) -> None:
        """Give back what was read, on disk or not."""
        assert self.model is None, "the tree of a loaded model shrinks, it is not dropped"
        self._forget_tree()

    def _forget_tree(self) -> None:
        self._dropped_bytes = self.tree_bytes
        self.cache, self.archive, self._identity = None, None, ""
        self.saving = self.saving_ahead = None
        self.sessions.attach(None)

    def recover(self, error: Exception) -> None:
        """Answer every request and drop the weights; they are loaded again after a pause."""
        if not isinstance(error, StepFailed):  # perhaps it is the tree that broke
            self._save_if_sound()
            self._forget_tree()
        self.status = ModelStatus("failed", error=in_words(error), key=self.source.key)
        inference, self.inference = self.inference, None
        if inference is not None:
            inference.abandon(unavailable(self.status), self.cache is not None)
        self._is_to_be_loaded_again = True
        self._close_backend()

    def _save_if_sound(self) -> None:
        """What was captured before something broke is what it was, if the tree holds together."""
        try:
            if self.cache is not None and self.archive is not None:
                self.cache.check()
                for kept in self.cache.states():
                    self.archive.save(kept)
        except Exception as error:
            log.error("what was read is lost: the tree does not hold together (%s)", error)

    def stop(self) -> None:
        """Answer every request, keep what they have."""
        self.status = replace(self.status, state="closed")
        inference, self.inference = self.inference, None
        if inference is not None:
            inference.stop(unavailable(self.status))

    def shut(self) -> None:
        """Give the device back. Every request was answered."""
        self._close_backend()
        self.cache = self.archive = self.saving = self.saving_ahead = None

    def reload_pause(self) -> float:
        """Seconds until it is loaded again; infinite if it is there, or nobody wants it to be."""
        pauses = self._shop.reload_pauses
        if self.model is not None or not self._is_to_be_loaded_again:
            return math.inf
        return pauses[self._failed_loads] if self._failed_loads < len(pauses) else math.inf

    def set_aside(self) -> None:
        """Do not load it again by itself; who asks for it has it loaded."""
        self._is_to_be_loaded_again = False
        self.status = replace(self.status, state="unloaded")

    def want_loaded(self) -> None:
        """Try again by itself if the first load fails for reasons that may pass."""
        self._is_to_be_loaded_again = True

    def hold(self, why: str) -> None:
        """Say why it is not loaded, until somebody who knows of it loads it."""
        self.status = replace(self.status, state="failed", error=why)

    def cache_status(self) -> CacheStatus:
        if self.inference is not None:
            return self.inference.cache_status()
        return CacheStatus() if self.cache is None else self.cache.status()

    def running(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.phase is not Phase.WAITING]

    def _close_backend(self) -> None:
        model, self.model = self.model, None
        if model is None:
            return
        self._shop.records.retire(model.backend.counters)
        try:
            model.backend.close()
        except Exception:
            log.exception("closing the backend failed")


def unavailable(model: ModelStatus) -> ModelUnavailable:
    """What a client hears while no model is ready."""
    words = {
        "loading": "the model is being loaded; try again in a moment",
        "unloaded": "the model is not loaded; try again in a moment",
        "closed": "the daemon is shutting down; try again when it is back",
    }
    failed = f"the model is not there ({model.error}); try again in a moment"
    return ModelUnavailable(words.get(model.state, failed), retry_after=RETRY_SECONDS)


def in_words(error: Exception) -> str:
    is_meant = isinstance(error, BackendError)
    return str(error) if is_meant else f"{type(error).__name__}: {error}"
