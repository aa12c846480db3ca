"""The engine as the event loop sees it: submit a request, read its events, ask for the status.

One thread, made here and nowhere else, runs the `worker` that owns every array. This side keeps
only what must be true at once: who uses which model (`leases`), which requests are live, who waits
for a reply. Everything here but `status`, `requests` and `model` belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from daemon.budget import Budget
from daemon.commands import (
    Ask,
    Available,
    Cancel,
    Close,
    DiskDone,
    Forget,
    Published,
    Released,
    Start,
    Unload,
    Want,
)
from daemon.deliveries import Generation, Outbox
from daemon.disk_cache.jobs import JobQueue, Result, Stop
from daemon.disk_cache.labor import work
from daemon.disk_desk import DiskDesk
from daemon.disk_status import DiskCheck, DiskContents
from daemon.disk_tier import DiskTier
from daemon.engine_options import EngineOptions
from daemon.errors import GenerationFailed
from daemon.generation import Failed, GenerationRequest, Usage
from daemon.inspection import Inspection, Question
from daemon.leases import Leases
from daemon.live_requests import LiveRequests, check_fit
from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Record
from daemon.replies import Replies
from daemon.resident import unavailable
from daemon.sources import ModelSource
from daemon.status import EngineStatus, ModelStatus, RequestStatus
from daemon.worker import Worker
from mlx_backend.interface import LoadedModel, OutputStream
from mlx_backend.messages import AnswerForm, ModelInfo, TextPiece, TokenIds

__all__ = ["LOAD_SECONDS", "Engine", "Generation", "Inspection"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

LOAD_SECONDS = 60.0
"""How long a request waits for its model to be loaded; agents wait longer for headers."""

JOIN_SECONDS = 4.0
"""How long closing waits for the chunk or the load that the thread is in, once it was told."""

DISK_JOIN_SECONDS = 1.0
"""How long it waits for the file that a disk thread is in."""


class Engine:
    """Runs models. `start` before anything else, `close` in the end."""

    def __init__(
        self,
        first: ModelSource | Callable[[], LoadedModel],
        *,
        make_cache: Callable[[ModelInfo], PrefixCache],
        make_budget: Callable[[ModelInfo], Budget] = Budget.without_limit,
        options: EngineOptions = EngineOptions(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.monotonic,
        on_busy: Callable[[bool], None] = lambda is_busy: None,
    ) -> None:
        """`on_busy` hears on the event loop that the first request came, or the last one ended."""
        self._first = first if isinstance(first, ModelSource) else ModelSource("", first)
        self._held = options.residency.held
        self._clock = clock
        self._live = LiveRequests(options.max_concurrent, options.max_queued, clock, on_busy)
        self._leases = Leases()
        self._replies = Replies()
        self._published = Published(EngineStatus(ModelStatus("loading")))
        self._refused: Counter[str] = Counter()
        self._is_closing = False
        self._disk = options.disk
        self._writer, self._reader = JobQueue(), JobQueue()
        self._disk_threads = self._make_disk_threads()
        self._worker = Worker(
            self._first,
            make_cache,
            make_budget,
            options,
            self._leases,
            Outbox(self._live.receive),
            self._publish,
            clock,
            None if self._disk is None else DiskTier(self._disk, self._writer, self._reader, clock),
            self._end_disk,
        )
        self._desk = self._make_desk()
        self._thread = threading.Thread(target=self._run, name="mlxd-engine", daemon=True)

    def start(self) -> None:
        """Start the thread, which loads the model; returns at once."""
        for thread in (self._thread, *self._disk_threads):
            thread.start()

    def _make_disk_threads(self) -> tuple[threading.Thread, ...]:
        """One that writes, one that reads; none without a disk cache."""
        if self._disk is None:
            return ()
        body = partial(work, self._disk.folder)
        return tuple(
            threading.Thread(target=body, args=(jobs, self._hear_disk), name=name, daemon=True)
            for name, jobs in (("mlxd-writer", self._writer), ("mlxd-reader", self._reader))
        )

    def _make_desk(self) -> DiskDesk | None:
        if self._disk is None:
            return None
        send = self._worker.commands.put
        return DiskDesk(self._disk, self._writer, self._reader, send, self._replies)

    def write_behind(self, write: Callable[[int], int]) -> None:
        """Have something small written to the disk of the disk cache; see `DiskDesk`."""
        assert self._desk is not None, "nothing is written where there is no disk cache"
        self._desk.write_behind(write)

    def _hear_disk(self, result: Result) -> None:
        """On a disk thread."""
        self._worker.commands.put(DiskDone(result))

    def _end_disk(self, seconds: float) -> None:
        """On the engine's thread: let the writer end what it was asked within that time, and both
        with the file that they are in. What is left is dropped here, where its arrays belong."""
        self._reader.halt()
        self._writer.put(Stop())
        end = self._clock() + seconds
        for thread in self._disk_threads:
            thread.join(max(0.0, end - self._clock()))
        self._writer.halt()
        for thread in self._disk_threads:
            thread.join(DISK_JOIN_SECONDS)
        self._writer.drop()
        self._reader.drop()

    def model(self, key: str = "") -> LoadedModel:
        """A loaded model, for its encoder and its output streams, from any thread.

        Whoever does more than look has a lease. Raises ModelUnavailable unless it takes requests.
        """
        return self._available(key).model

    @asynccontextmanager
    async def lease(
        self, source: ModelSource | None = None, wait_seconds: float = LOAD_SECONDS
    ) -> AsyncIterator[LoadedModel]:
        """A model that stays loaded for the time; without a source the one of the start.

        It is loaded if it is not, for which there may have to be room first. Raises
        ModelUnavailable if that takes longer than `wait_seconds`, ModelDoesNotFit.
        """
        wanted = source or self._first
        self._leases.take(wanted.key)
        try:
            found = self._published.models.get(wanted.key)
            if found is None or found.is_closing or self._is_closing:
                yield await self._loaded(wanted, wait_seconds)
            else:
                yield found.model
        finally:
            self._leases.give_back(wanted.key, self._clock())
            self._worker.commands.put(Released())  # others may only wait for it

    async def _loaded(self, source: ModelSource, wait_seconds: float) -> LoadedModel:
        if self._is_closing:
            raise unavailable(ModelStatus("closed"))
        if self._held:
            raise unavailable(ModelStatus("failed", error=self._held))
        with self._replies.awaited() as reply:
            want = Want(source, self._clock(), reply)
            self._worker.commands.put(want)
            try:
                model: LoadedModel = await asyncio.wait_for(reply.future, wait_seconds)
            except TimeoutError:
                raise unavailable(ModelStatus("loading")) from None
            finally:
                self._worker.commands.put(Forget(want))
        return model

    def lift_hold(self) -> None:
        """Somebody wants a model although the engine was started without one for a reason."""
        self._held = ""

    async def unload(self, key: str = "") -> None:
        """Give a model's weights back. Raises ModelInUse."""
        with self._replies.awaited() as reply:
            self._worker.commands.put(Unload(key or self._first.key, reply))
            await reply.future

    def _available(self, key: str) -> Available:
        published = self._published
        if self._is_closing:
            raise unavailable(ModelStatus("closed"))
        wanted = key or self._first.key
        found = published.models.get(wanted)
        if found is None:
            known = [status for status in published.status.models if status.key == wanted]
            raise unavailable(known[0] if known else ModelStatus("unloaded"))
        return found

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request; its events come from the returned iterator.

        Raises ModelUnavailable, Overloaded, and ContextOverflow for a prompt that cannot fit.
        """
        available = self._available(request.model)
        check_fit(request, available.model.info.context_size, available.budget)
        self._live.check_room()
        generation = Generation(request, asyncio.get_running_loop(), self._stop)
        self._worker.commands.put(Start(generation, self._live.add(generation)))
        return generation

    def count_refusal(self, status: int) -> None:
        """A request was refused, here or before it came here, with that HTTP status."""
        self._refused[str(status)] += 1

    def status(self) -> EngineStatus:
        """The latest status, from any thread; never waits for the engine."""
        published, now = self._published, self._clock()
        status = published.status
        waiting = self._live.waiting({request.id for request in (*status.running, *status.recent)})
        refused = dict(self._refused)
        totals = replace(status.totals, refused=sum(refused.values()), refused_by_status=refused)
        models = tuple(published.told(model, now) for model in status.models)
        model = published.told(status.model, now)
        model = replace(model, state="closed") if self._is_closing else model
        return replace(status, model=model, models=models, totals=totals, waiting=waiting)

    def requests(self, *, with_texts: bool = False) -> tuple[RequestStatus, ...]:
        """The last requests that ended, then those that run and wait; from any thread.

        `with_texts` shows where sessions left their own history: what they sent there, and what
        was stored; only while there is a model, whose words those are.
        """
        published = self._published
        shown = tuple(
            self._with_texts(record) if with_texts else record.status
            for record in published.records
        )
        begun = {record.status.id for record in published.records}
        return (*shown, *self._live.waiting(begun))

    def _with_texts(self, record: Record) -> RequestStatus:
        available = self._published.models.get(record.status.model or self._first.key)
        if available is None:
            return record.status
        return record.with_texts(partial(_text, available.model.output))

    async def ask(
        self, question: Callable[[Inspection], Answer], *, session: str | None = None
    ) -> Answer:
        """Put a question to the engine's thread, which answers between two chunks.

        It may read and change what it is shown: the tree of the model that has `session`, or else
        of the one used last. Raises ModelUnavailable, and what it raises.
        """

        def of_one(inspections: Sequence[Inspection]) -> Answer:
            knowing = (each for each in inspections if session and each.sessions.has(session))
            return question(next(knowing, inspections[0]))

        return await self._ask(of_one)

    async def ask_each(self, question: Callable[[Inspection], Answer]) -> list[Answer]:
        """The same of every model with a tree."""
        return await self._ask(lambda inspections: [question(each) for each in inspections])

    async def _ask(self, question: Callable[[Sequence[Inspection]], Answer]) -> Answer:
        if self._is_closing:
            raise unavailable(ModelStatus("closed"))
        if not self._published.has_trees:
            raise unavailable(self._published.status.model)
        with self._replies.awaited() as reply:
            self._worker.commands.put(Ask(Question(question, reply)))
            answer: Answer = await reply.future
        return answer

    async def disk_contents(self) -> DiskContents:
        """What is on disk, of all models, loaded or not."""
        desk = self._open_desk()
        return DiskContents() if desk is None else await desk.contents()

    async def check_disk(self) -> DiskCheck:
        """Read and verify all of it, and delete what is wrong; takes as long as that takes."""
        desk = self._open_desk()
        return DiskCheck() if desk is None else await desk.check()

    async def clear_disk(self) -> None:
        """Delete all of it; it is gone then. What is in memory stays."""
        desk = self._open_desk()
        if desk is not None:
            await desk.clear()

    def _open_desk(self) -> DiskDesk | None:
        if self._is_closing:
            raise unavailable(ModelStatus("closed"))
        return self._desk

    async def close(self, grace_seconds: float) -> bool:
        """Refuse what comes, let what runs end within the grace, fail the rest, end the thread.

        What was read is written to the disk before that, as far as its own time allows. False if a
        thread is still inside a chunk, a load or a file: then nobody may take modules away from
        under it, as the interpreter does in its end.
        """
        self._is_closing = True
        if not self._thread.is_alive():
            return True
        if not await self._live.all_end(grace_seconds):
            log.warning("requests cut short by the shutdown: %d", len(self._live))
        self._worker.commands.put(Close())
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS + self._disk_seconds)
        return not any(thread.is_alive() for thread in (self._thread, *self._disk_threads))

    @property
    def _disk_seconds(self) -> float:
        """What writing may take in the end."""
        disk = self._disk
        return 0.0 if disk is None else disk.save_seconds + 2 * DISK_JOIN_SECONDS

    def _stop(self, generation: Generation, is_whole: bool) -> None:
        self._worker.commands.put(Cancel(generation, is_whole))

    def _publish(self, published: Published) -> None:
        """On the engine's thread: one assignment of a frozen value."""
        self._published = published

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException:
            log.critical("the engine's thread died; restart the daemon", exc_info=True)
            model = ModelStatus("failed", error="the engine's thread died; restart the daemon")
            self._published = Published(EngineStatus(model))
            self._fail_live()
            self._end_disk(0.0)

    def _fail_live(self) -> None:
        """On the dying thread: nobody else is left to answer."""
        self._replies.fail_all(unavailable(self._published.status.model))
        outbox = Outbox(self._live.receive)
        for generation in self._live:
            error = GenerationFailed("the engine's thread died; restart the daemon")
            outbox.put(generation, Failed(error, Usage(len(generation.request.prompt))))
        outbox.post()


def _text(output: Callable[[AnswerForm], OutputStream], ids: TokenIds) -> str:
    """What a few ids say, by a stream of their own: they continue nothing."""
    stream = output(AnswerForm(is_raw=True))
    pieces = [*stream.push(ids.tolist()), *stream.finish()]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
