"""The engine's thread from first to last: loads the model, obeys commands, survives failures.

It sleeps while there is nothing to do: no polling, no timeouts but the pauses between attempts
to load the model again and the time at which the next session has been idle for too long.
Whatever breaks below it, every request is answered, the model is loaded again, and until then the
state says so. Commands come in by a queue, events and status go out; nothing else crosses.
Threads are made elsewhere (`engine`), arrays handled below (`inference`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from daemon.budget import Budget
from daemon.commands import Ask, Cancel, Close, Command, Published, Start
from daemon.deliveries import Outbox
from daemon.errors import ModelUnavailable
from daemon.generation import Failed, Usage
from daemon.inference import Inference, ReadingPolicy
from daemon.inspection import Inspection, Question
from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Record, Records, memory_status, model_status, record_of, request_status
from daemon.sessions import Sessions
from daemon.status import EngineStatus, ModelStatus
from daemon.turns import Phase, Turn
from mlx_backend.errors import BackendError, StepFailed
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import ModelInfo

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.1
MIN_NAP_SECONDS = 1.0
WEIGH_SECONDS = 1.0
RETRY_SECONDS = 5
RELOAD_PAUSES: tuple[float, ...] = (0.0, 1.0, 5.0, 30.0, 120.0)


class Worker:
    """Owns the model, the prefix tree and every turn; `run` is the body of the one thread."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        make_cache: Callable[[ModelInfo], PrefixCache],
        make_budget: Callable[[ModelInfo], Budget],
        policy: ReadingPolicy,
        sessions: Sessions,
        outbox: Outbox,
        publish: Callable[[Published], None],
        clock: Callable[[], float],
        reload_pauses: Sequence[float] = RELOAD_PAUSES,
    ) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self._load_model = load
        self._make_cache = make_cache
        self._make_budget = make_budget
        self._policy = policy
        self._outbox = outbox
        self._publish = publish
        self._clock = clock
        self._reload_pauses = reload_pauses
        self._records = Records()
        self._sessions = sessions
        self._model_status = ModelStatus("loading")
        self._model: LoadedModel | None = None
        self._inference: Inference | None = None
        self._cache: PrefixCache | None = None
        self._cache_identity = ""
        self._arrivals = 0
        self._failed_loads = 0
        self._published_at = float("-inf")
        self._published_ends = 0

    def run(self) -> None:
        """The thread's whole life; only `Close` ends it."""
        self._load()
        while (failure := self._serve()) is not None:
            self._recover(failure)
        self._shut()

    def _serve(self) -> str | None:
        """Work until told to close, or until something breaks: then what it was, in words."""
        try:
            while self._obey_commands():
                assert self._inference is not None, "busy without a model"
                self._inference.decode_step()
                self._tell()  # a chunk may take long: tokens do not wait for it
                self._inference.read_chunk()
                self._tell()
        except Exception as error:
            log.exception("the engine broke; the model will be loaded again")
            if not isinstance(error, StepFailed):
                self._cache = None  # perhaps it is the tree that broke
                self._sessions.attach(None)
            return _in_words(error)
        return None

    def _obey_commands(self) -> bool:
        """Carry out what was asked. True when there is work to do, False when told to close."""
        self._sessions.expire(self._clock())
        while (command := self._next_command()) is not None:
            self._sessions.expire(self._clock())
            match command:
                case Start():
                    self._start(command)
                case Cancel():
                    self._cancel(command)
                case Ask(question):
                    self._answer(question)
                case Close():
                    return False
        return True

    def _next_command(self) -> Command | None:
        """The next command, or None if there is other work; sleeps while there is neither."""
        if self._inference is None or not self._inference.turns:
            return self._sleep()
        try:
            return self.commands.get_nowait()
        except Empty:
            return None

    def _sleep(self) -> Command:
        if self._model is not None:
            self._model.backend.trim_pool()
        while True:
            self._sessions.expire(self._clock())
            self._tell(must_publish=True)
            pause, nap = self._reload_pause(), self._expiry_nap()
            command = self._next_within(min(pause, nap))
            if command is not None:
                return command
            if pause < nap:
                self._load()

    def _expiry_nap(self) -> float:
        """Seconds until a session expires; a clock that runs apart from the queue's is no tick."""
        expiry = self._sessions.next_expiry()
        return math.inf if expiry is None else max(MIN_NAP_SECONDS, expiry - self._clock())

    def _next_within(self, seconds: float) -> Command | None:
        try:
            return self.commands.get(timeout=None if seconds == math.inf else seconds)
        except Empty:
            return None

    def _reload_pause(self) -> float:
        """Seconds until the model is loaded again; infinite if it is there or was given up."""
        if self._model is not None or self._failed_loads >= len(self._reload_pauses):
            return math.inf
        return self._reload_pauses[self._failed_loads]

    def _start(self, start: Start) -> None:
        generation = start.generation
        if self._inference is None:
            usage = Usage(len(generation.request.prompt))
            self._outbox.put(generation, Failed(unavailable(self._model_status), usage))
            return
        self._arrivals += 1
        session = self._sessions.open(generation.request, self._clock())
        self._inference.add(Turn(generation, self._arrivals, start.arrived, session))

    def _cancel(self, cancel: Cancel) -> None:
        if self._inference is None:
            return
        for turn in self._inference.turns:
            if turn.generation is cancel.generation:
                self._inference.cancel(turn, is_whole=cancel.is_whole)
                return

    def _answer(self, question: Question) -> None:
        """What was changed is in the status before whoever asked for it hears so."""
        model, cache = self._model, self._cache
        if model is None or cache is None:
            question.fail(unavailable(self._model_status))
            return
        now = self._clock()
        send = question.put_to(Inspection(cache, self._sessions, self._records, model.info, now))
        self._tell(must_publish=True)
        send()

    def _load(self) -> None:
        self._model_status = replace(self._model_status, state="loading")
        self._tell(must_publish=True)
        try:
            self._install(self._load_model())
        except Exception as error:
            is_meant = isinstance(error, BackendError)  # then its words say all
            log.error("the model cannot be loaded: %s", error, exc_info=not is_meant)
            was_servable = self._cache_identity != ""
            self._failed_loads += 1
            if isinstance(error, BackendError) and not was_servable:
                self._failed_loads = len(self._reload_pauses)  # it will be no better next time
            self._model_status = ModelStatus("failed", error=_in_words(error))

    def _install(self, model: LoadedModel) -> None:
        info = model.info
        if self._cache is None or self._cache_identity != info.identity:
            self._cache = self._make_cache(info)
            self._cache_identity = info.identity
            self._sessions.attach(self._cache)
        self._inference = Inference(
            model,
            self._cache,
            self._make_budget(info),
            self._policy,
            self._sessions,
            self._records,
            self._outbox,
            self._announce,
            self._clock,
        )
        self._model = model
        self._model_status = model_status(info)
        self._failed_loads = 0

    def _recover(self, failure: str) -> None:
        """Answer every request and drop the model; it is loaded again from the sleep."""
        self._model_status = ModelStatus("failed", error=failure)
        inference, self._inference = self._inference, None
        if inference is not None:
            inference.abandon(unavailable(self._model_status), self._cache is not None)
        self._close_backend()

    def _shut(self) -> None:
        """Answer every request, keep what they have, give the device back."""
        self._model_status = replace(self._model_status, state="closed")
        inference, self._inference = self._inference, None
        if inference is not None:
            inference.stop(unavailable(self._model_status))
        self._close_backend()
        self._cache = None
        self._tell(must_publish=True)

    def _close_backend(self) -> None:
        model, self._model = self._model, None
        if model is None:
            return
        self._records.retire(model.backend.counters)
        try:
            model.backend.close()
        except Exception:
            log.exception("closing the backend failed")

    def _announce(self) -> None:
        self._tell(must_publish=True)

    def _tell(self, must_publish: bool = False) -> None:
        """Post the events of this pass; before that the status, if it is due.

        While busy it is due every so often, and whenever a request ended: whoever hears of an end
        finds it in the status.
        """
        now = self._clock()
        has_ends = self._records.closed > self._published_ends
        if must_publish or has_ends or now - self._published_at >= PUBLISH_SECONDS:
            self._published_at, self._published_ends = now, self._records.closed
            budget = self._inference.rows.budget if self._inference is not None else None
            records = self._records.all + self._running_records(now)
            self._publish(Published(self._status(now), self._model, budget, records))
        self._outbox.post()

    def _running_records(self, now: float) -> tuple[Record, ...]:
        turns = self._inference.turns if self._inference is not None else ()
        return tuple(record_of(turn, now) for turn in turns if turn.phase is not Phase.WAITING)

    def _status(self, now: float) -> EngineStatus:
        model, inference, records = self._model, self._inference, self._records
        if model is None or inference is None:
            return EngineStatus(
                model=self._model_status,
                totals=records.totals(),
                recent=records.recent,
                sessions=self._sessions.statuses(now),
            )
        running = [turn for turn in inference.turns if turn.phase is not Phase.WAITING]
        return EngineStatus(
            model=self._model_status,
            cache=inference.cache_status(),
            totals=records.totals(model.backend.counters),
            memory=memory_status(model.backend, running, inference.rows.budget.max_bytes),
            running=tuple(request_status(turn, now) for turn in running),
            recent=records.recent,
            sessions=self._sessions.statuses(now, WEIGH_SECONDS if inference.turns else 0.0),
        )


def unavailable(model: ModelStatus) -> ModelUnavailable:
    """What a client hears while no model is ready."""
    words = {
        "loading": "the model is being loaded; try again in a moment",
        "closed": "the daemon is shutting down; try again when it is back",
    }
    failed = f"the model is not there ({model.error}); try again in a moment"
    return ModelUnavailable(words.get(model.state, failed), retry_after=RETRY_SECONDS)


def _in_words(error: Exception) -> str:
    is_meant = isinstance(error, BackendError)
    return str(error) if is_meant else f"{type(error).__name__}: {error}"
