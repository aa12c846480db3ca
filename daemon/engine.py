"""The engine as the event loop sees it: submit a request, read its events, ask for the status.

One thread, made here and nowhere else, runs the `worker` that owns every array. This side keeps
only the live requests, which must be true at once: a full queue refuses at the door, a cancelled
request leaves it immediately, closing waits for those that run. Everything here but `status` and
`model` belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from daemon.budget import Budget
from daemon.commands import Ask, Cancel, Close, Published, Start
from daemon.deliveries import Delivery, Generation, Outbox
from daemon.errors import ContextOverflow, GenerationFailed, MemoryOverflow, Overloaded
from daemon.generation import Failed, GenerationRequest, Usage
from daemon.inference import ReadingPolicy
from daemon.inspection import Inspection, Question
from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import PromptEnd
from daemon.prefix_cache.policies import (
    ByFunction,
    ByOptions,
    CheckpointPolicy,
    OffsetsFunction,
)
from daemon.sessions import Sessions
from daemon.status import EngineStatus, ModelStatus, RequestStatus
from daemon.worker import (
    RELOAD_PAUSES,
    RETRY_SECONDS,
    Worker,
    unavailable,
)
from mlx_backend.interface import LoadedModel, OutputStream
from mlx_backend.messages import AnswerForm, ModelInfo, TextPiece, TokenIds

__all__ = ["Engine", "Generation", "Inspection"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

JOIN_SECONDS = 4.0
"""How long closing waits for the chunk or the load that the thread is in, once it was told."""


class Engine:
    """Runs one model. `start` before anything else, `close` in the end."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        *,
        make_cache: Callable[[ModelInfo], PrefixCache],
        make_budget: Callable[[ModelInfo], Budget] = Budget.without_limit,
        chunk_tokens: int = 2048,
        max_concurrent: int = 8,
        max_queued: int = 64,
        prompt_end: str = "every",
        checkpoint_interval: int | None = None,
        checkpoint_offsets: OffsetsFunction | None = None,
        max_sessions: int = 64,
        session_idle_seconds: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        reload_pauses: Sequence[float] = RELOAD_PAUSES,
    ) -> None:
        checkpoints: CheckpointPolicy = ByOptions(PromptEnd(prompt_end), checkpoint_interval)
        if checkpoint_offsets is not None:
            checkpoints = ByFunction(checkpoint_offsets)
        policy = ReadingPolicy(chunk_tokens, max_concurrent, checkpoints)
        outbox = Outbox(self._receive)
        sessions = Sessions(max_sessions=max_sessions, idle_seconds=session_idle_seconds)
        self._worker = Worker(
            load,
            make_cache,
            make_budget,
            policy,
            sessions,
            outbox,
            self._publish,
            clock,
            reload_pauses,
        )
        self._thread = threading.Thread(target=self._run, name="mlxd-engine", daemon=True)
        self._published = Published(EngineStatus(ModelStatus("loading")))
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._clock = clock
        self._live: dict[Generation, float] = {}  # with the time of arrival
        self._questions: set[Question] = set()
        self._all_ended: asyncio.Event | None = None
        self._is_closing = False
        self._refused = 0

    def start(self) -> None:
        """Start the thread, which loads the model; returns at once."""
        self._thread.start()

    def model(self) -> LoadedModel:
        """The loaded model, for its encoder and its output streams, from any thread.

        Raises ModelUnavailable unless it is ready for requests.
        """
        published = self._published
        if self._is_closing:
            raise unavailable(ModelStatus("closed"))
        if published.model is None:
            raise unavailable(published.status.model)
        return published.model

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request; its events come from the returned iterator.

        Raises ModelUnavailable, Overloaded, and ContextOverflow for a prompt that cannot fit.
        """
        _check_fit(request, self.model().info.context_size, self._published.budget)
        self._check_room()
        generation = Generation(request, asyncio.get_running_loop(), self._stop)
        arrived = self._live[generation] = self._clock()
        self._worker.commands.put(Start(generation, arrived))
        return generation

    def status(self) -> EngineStatus:
        """The latest status, from any thread; never waits for the engine."""
        status = self._published.status
        waiting = self._waiting({request.id for request in (*status.running, *status.recent)})
        totals = replace(status.totals, refused=self._refused)
        model = replace(status.model, state="closed") if self._is_closing else status.model
        return replace(status, model=model, totals=totals, waiting=waiting)

    def requests(self, *, with_texts: bool = False) -> tuple[RequestStatus, ...]:
        """The last requests that ended, then those that run and wait; from any thread.

        `with_texts` shows where sessions left their own history: what they sent there, and what
        was stored; only while there is a model, whose words those are.
        """
        published = self._published
        model = published.model
        if with_texts and model is not None:
            text_of = partial(_text, model.output)
            shown = tuple(record.with_texts(text_of) for record in published.records)
        else:
            shown = tuple(record.status for record in published.records)
        begun = {record.status.id for record in published.records}
        return (*shown, *self._waiting(begun))

    def _waiting(self, begun: Container[str]) -> tuple[RequestStatus, ...]:
        """Requests that stand in the queue, as far as the engine's thread has not `begun` them."""
        now = self._clock()
        return tuple(
            _waiting_status(generation, now - arrived)
            for generation, arrived in tuple(self._live.items())
            if generation.is_waiting and generation.request.id not in begun
        )

    async def ask(self, question: Callable[[Inspection], Answer]) -> Answer:
        """Put a question to the engine's thread, which answers between two chunks.

        It may read and change what it is shown. Raises ModelUnavailable, and what it raises.
        """
        self.model()
        loop = asyncio.get_running_loop()
        asked = Question(question, loop, loop.create_future())
        self._questions.add(asked)
        try:
            self._worker.commands.put(Ask(asked))
            answer: Answer = await asked.answer
            return answer
        finally:
            self._questions.discard(asked)

    async def close(self, grace_seconds: float) -> bool:
        """Refuse what comes, let what runs end within the grace, fail the rest, end the thread.

        False if the thread is still inside a chunk or a load: then nobody may take modules away
        from under it, as the interpreter does in its end.
        """
        self._is_closing = True
        if not self._thread.is_alive():
            return True
        self._all_ended = asyncio.Event()
        if self._live:
            try:
                await asyncio.wait_for(self._all_ended.wait(), grace_seconds)
            except TimeoutError:
                log.warning("%d requests are cut short by the shutdown", len(self._live))
        self._worker.commands.put(Close())
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)
        return not self._thread.is_alive()

    def _check_room(self) -> None:
        """Those that wait beyond the rows that can run count as queued."""
        waiting = sum(generation.is_waiting for generation in self._live)
        running = sum(generation.has_started for generation in self._live)
        if waiting + running >= self._max_concurrent + self._max_queued:
            self._refused += 1
            raise Overloaded(
                f"{waiting} requests are waiting already; try again in a moment",
                retry_after=RETRY_SECONDS,
            )

    def _stop(self, generation: Generation, is_whole: bool) -> None:
        self._worker.commands.put(Cancel(generation, is_whole))

    def _receive(self, deliveries: Sequence[Delivery]) -> None:
        """Events of one pass of the engine's thread; on the loop."""
        for generation, event in deliveries:
            generation.deliver(event)
            if generation.has_ended:
                self._live.pop(generation, None)
        if not self._live and self._all_ended is not None:
            self._all_ended.set()

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

    def _fail_live(self) -> None:
        """On the dying thread: nobody else is left to answer."""
        for question in tuple(self._questions):
            question.fail(unavailable(self._published.status.model))
        outbox = Outbox(self._receive)
        for generation in tuple(self._live):
            error = GenerationFailed("the engine's thread died; restart the daemon")
            outbox.put(generation, Failed(error, Usage(len(generation.request.prompt))))
        outbox.post()


def _check_fit(request: GenerationRequest, context_size: int, budget: Budget | None) -> None:
    prompt = len(request.prompt)
    if prompt > context_size:
        raise ContextOverflow(
            f"the prompt has {prompt} tokens, the context {context_size}; shorten it",
        )
    assert request.max_tokens >= 1, "max_tokens is validated by the caller"
    assert prompt + request.max_tokens <= context_size + 1, "max_tokens is clamped by the caller"
    refusal = budget.refusal(prompt, request.max_tokens) if budget is not None else None
    if refusal is not None:
        raise MemoryOverflow(refusal)


def _text(output: Callable[[AnswerForm], OutputStream], ids: TokenIds) -> str:
    """What a few ids say, by a stream of their own: they continue nothing."""
    stream = output(AnswerForm(is_raw=True))
    pieces = [*stream.push(ids.tolist()), *stream.finish()]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def _waiting_status(generation: Generation, seconds: float) -> RequestStatus:
    request = generation.request
    return RequestStatus(
        id=request.id,
        phase="waiting",
        session=request.session,
        prompt=len(request.prompt),
        reused=0,
        read=0,
        generated=0,
        waited_seconds=seconds,
        first_token_seconds=None,
        seconds=seconds,
        arrived_at=generation.arrived_at,
    )
