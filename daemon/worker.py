"""The engine's thread from first to last: obeys commands, works, survives failures.

It sleeps while there is nothing to do: no polling, no timeouts but the pauses between attempts
to load a model again and the time at which something has been idle, or has waited, for too long.
Whatever breaks below it, every request is answered, the model is loaded again, and until then the
state says so. Commands come in by a queue, events and status go out; nothing else crosses.
Threads are made elsewhere (`engine`), models come and go in `residents`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from daemon.budget import Budget
from daemon.commands import (
    Ask,
    AskDisk,
    Available,
    Cancel,
    Close,
    Command,
    DiskDone,
    Forget,
    Published,
    Released,
    Start,
    Unload,
    Want,
)
from daemon.deliveries import Outbox
from daemon.disk_cache.jobs import Result
from daemon.disk_status import DiskStatus
from daemon.disk_tier import DiskTier
from daemon.engine_options import EngineOptions
from daemon.errors import DaemonError
from daemon.inspection import Question
from daemon.leases import Leases
from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Record, Records, memory_status, record_of, request_status
from daemon.resident import Resident, Workshop, unavailable
from daemon.residents import Residents
from daemon.sources import ModelSource
from daemon.status import EngineStatus, combined
from mlx_backend.messages import ModelInfo

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.1
MIN_NAP_SECONDS = 1.0
WEIGH_SECONDS = 1.0


class Worker:
    """Owns every model, tree and turn; `run` is the body of the one thread."""

    def __init__(
        self,
        first: ModelSource,
        make_cache: Callable[[ModelInfo], PrefixCache],
        make_budget: Callable[[ModelInfo], Budget],
        options: EngineOptions,
        leases: Leases,
        outbox: Outbox,
        publish: Callable[[Published], None],
        clock: Callable[[], float],
        disk: DiskTier | None = None,
        end_disk: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`end_disk` lets the disk's threads end with what they have to do, within its seconds."""
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self._outbox = outbox
        self._publish = publish
        self._clock = clock
        self._disk = disk
        self._end_disk = end_disk
        self._records = Records()
        workshop = Workshop(
            make_cache,
            make_budget,
            options.new_sessions,
            options.reading,
            self._records,
            outbox,
            self._tell,
            clock,
            options.reload_pauses,
            disk,
        )
        self._residents = Residents(first, workshop, leases, options.residency)
        self._published_at = float("-inf")
        self._published_ends = 0
        self._heard_of_disk = False

    def run(self) -> None:
        """The thread's whole life; only `Close` ends it."""
        if self._disk is not None:
            self._disk.start()
        self._residents.load_first()
        while self._obey_commands():
            for resident in self._residents.busy:
                with self._contained(resident):
                    resident.work()
            if self._residents.trees.can_go_on:
                self._residents.go_on_saving()
        self._residents.stop()
        self._tell(True)
        self._save_all()
        self._residents.shut()
        self._tell(True)

    def _save_all(self) -> None:
        """Have what was read written, for as long as that may take at the end of everything."""
        if self._disk is None:
            return
        end = self._clock() + self._disk.options.save_seconds
        while self._residents.trees.is_saving and self._save_some(end - self._clock()):
            pass
        if self._residents.trees.is_saving:
            log.warning("there was no time to write all that was read to the disk")
        self._disk.note_uses()
        self._end_disk(max(0.0, end - self._clock()))
        self._disk.abandon()

    def _save_some(self, seconds: float) -> bool:
        """Hand over a little, or wait until the disk has done something; False if that takes too
        long."""
        if seconds <= 0:
            return False
        if self._residents.trees.can_go_on:
            self._residents.go_on_saving()
            seconds = 0.0
        command = self._next_within(seconds)
        if isinstance(command, DiskDone):
            self._hear(command.result)
        return command is not None or not seconds

    @contextmanager
    def _contained(self, resident: Resident) -> Iterator[None]:
        """What breaks costs this model's requests, and nobody else's."""
        try:
            yield
        except Exception as error:
            log.exception("the engine broke; the model will be loaded again")
            self._residents.recover(resident, error)

    def _obey_commands(self) -> bool:
        """Carry out what was asked. True when there is work to do, False when told to close."""
        self._expire()
        while (command := self._next_command()) is not None:
            self._expire()
            self._heard_of_disk = isinstance(command, DiskDone)
            if isinstance(command, Close):
                return False
            self._obey(command)
        self._residents.settle_wants()
        return True

    def _expire(self) -> None:
        """Forget sessions, and unload models, that have been idle for too long; and the like."""
        now = self._clock()
        for resident in self._residents:
            with self._contained(resident):
                resident.expire(now)
        self._residents.expire(now)

    def _obey(self, command: Command) -> None:
        match command:
            case Start(generation):
                resident = self._residents.get(generation.request.model)
                with self._contained(resident):
                    resident.start(command)
            case Cancel():
                self._cancel(command)
            case Ask(question):
                self._answer(question)
            case Want():
                self._residents.want(command)
            case Forget(want):
                self._residents.forget(want)
            case Unload():
                self._unload(command)
            case DiskDone(result):
                self._hear(result)
            case AskDisk():
                self._answer_of_disk(command)
            case Released() | Close():
                pass

    def _hear(self, result: Result) -> None:
        """A disk thread has done something. What goes wrong with it costs reading again."""
        assert self._disk is not None
        try:
            self._disk.hear(result)
        except Exception:
            log.exception("the disk cache broke")
        self._residents.go_on_saving()
        for resident in self._residents:
            with self._contained(resident):
                resident.hear_disk(result)

    def _next_command(self) -> Command | None:
        """The next command, or None if there is other work; sleeps while there is neither."""
        if not self._residents.busy:
            return self._sleep()
        try:
            return self.commands.get_nowait()
        except Empty:
            return None

    def _sleep(self) -> Command:
        for resident in self._residents.loaded:
            if resident.turns:
                continue  # it only waits for the disk
            assert resident.model is not None
            resident.model.backend.trim_pool()
        while True:
            self._expire()
            self._residents.settle_wants()
            self._tell(not self._has_news_to_come)
            if self._residents.trees.can_go_on:
                command = self._next_within(0.0)
                if command is not None:
                    return command
                self._residents.go_on_saving()
                continue
            pause, nap = self._residents.reload_pause(), self._nap()
            command = self._next_within(min(pause, nap))
            if command is not None:
                return command
            if pause < nap:
                self._residents.reload()

    def _nap(self) -> float:
        """Seconds until something is idle for too long; a clock that runs apart from the queue's
        is no tick."""
        expiry = self._residents.next_expiry()
        return expiry if expiry == math.inf else max(MIN_NAP_SECONDS, expiry - self._clock())

    @property
    def _has_news_to_come(self) -> bool:
        """Whether all that is new is one more file, or state, and the next one follows soon."""
        is_writing = self._disk is not None and self._disk.pending_bytes > 0
        return self._residents.trees.can_go_on or (self._heard_of_disk and is_writing)

    def _next_within(self, seconds: float) -> Command | None:
        try:
            return self.commands.get(timeout=None if seconds == math.inf else seconds)
        except Empty:
            return None

    def _cancel(self, cancel: Cancel) -> None:
        for resident in self._residents:
            with self._contained(resident):
                if resident.cancel(cancel):
                    return

    def _unload(self, unload: Unload) -> None:
        try:
            self._residents.unload(unload.key)
        except DaemonError as refusal:
            unload.reply.fail(refusal)
        else:
            unload.reply.send(None)

    def _answer(self, question: Question) -> None:
        """What was changed is in the status before whoever asked for it hears so."""
        found = [each.inspection() for each in self._residents.with_trees()]
        inspections = [each for each in found if each is not None]
        if not inspections:
            question.reply.fail(unavailable(self._residents.primary.status))
            return
        send = question.put_to(inspections)
        self._residents.look_again()
        self._tell(True)
        send()

    def _answer_of_disk(self, asked: AskDisk) -> None:
        assert self._disk is not None
        if asked.is_clearing:
            self._residents.trees.give_up()
        try:
            answer = asked.ask(self._disk, self._residents.names())
        except Exception as error:
            asked.reply.fail(error)
        else:
            self._tell(True)
            asked.reply.send(answer)

    def _tell(self, must_publish: bool = False) -> None:
        """Post the events of this pass; before that the status, if it is due.

        While busy it is due every so often, and whenever a request ended: whoever hears of an end
        finds it in the status.
        """
        now = self._clock()
        has_ends = self._records.closed > self._published_ends
        if must_publish or has_ends or now - self._published_at >= PUBLISH_SECONDS:
            self._published_at, self._published_ends = now, self._records.closed
            records = self._records.all + self._running_records(now)
            has_trees = any(each.cache is not None for each in self._residents)
            status = self._status(now)
            idle = self._residents.idle()
            self._publish(Published(status, self._available(), has_trees, records, idle))
        self._outbox.post()

    def _available(self) -> dict[str, Available]:
        return {
            each.source.key: Available(each.model, each.budget, self._residents.is_overdue(each))
            for each in self._residents
            if each.model is not None and not self._residents.is_leaving(each)
        }

    def _running_records(self, now: float) -> tuple[Record, ...]:
        return tuple(record_of(turn, now) for each in self._residents for turn in each.running())

    def _status(self, now: float) -> EngineStatus:
        residents, records = self._residents, self._records
        running = [turn for each in residents for turn in each.running()]
        backends = [each.model.backend for each in residents if each.model is not None]
        budgets = [each.budget.max_bytes for each in residents if each.budget is not None]
        max_age = WEIGH_SECONDS if any(each.turns for each in residents) else 0.0
        return EngineStatus(
            model=residents.primary.status,
            models=tuple(each.status for each in residents),
            cache=combined([each.cache_status() for each in residents]),
            totals=records.totals([backend.counters for backend in backends]),
            memory=memory_status(backends, running, budgets),
            running=tuple(request_status(turn, now) for turn in running),
            recent=records.recent,
            sessions=tuple(
                status for each in residents for status in each.sessions.statuses(now, max_age)
            ),
            disk=DiskStatus() if self._disk is None else self._disk.status(),
        )
