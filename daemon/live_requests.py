"""The requests that are live, from their arrival to their last event, as the event loop has them.

What has to be true at once is known here, without asking the engine's thread: a full queue refuses
at the door, an ended request is gone, closing waits for those that run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Sequence

from daemon.budget import Budget
from daemon.deliveries import Delivery, Generation
from daemon.errors import ContextOverflow, MemoryOverflow, Overloaded
from daemon.generation import GenerationRequest
from daemon.records import waiting_status
from daemon.resident import RETRY_SECONDS
from daemon.status import RequestStatus


class LiveRequests:
    """Belongs to the event loop; to iterate, and to ask who is `waiting`, is safe on any thread.

    `on_busy` hears that the first request came, or the last one ended.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_queued: int,
        clock: Callable[[], float],
        on_busy: Callable[[bool], None],
    ) -> None:
        self._most = max_concurrent + max_queued
        self._clock = clock
        self._on_busy = on_busy
        self._arrivals: dict[Generation, float] = {}
        self._all_ended: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[Generation]:
        return iter(tuple(self._arrivals))

    def check_room(self) -> None:
        """Raises Overloaded. Those that wait beyond the rows that can run count as queued."""
        waiting = sum(generation.is_waiting for generation in self)
        running = sum(generation.has_started for generation in self)
        if waiting + running >= self._most:
            raise Overloaded(
                f"{waiting} requests are waiting already; try again in a moment",
                retry_after=RETRY_SECONDS,
            )

    def add(self, generation: Generation) -> float:
        """When it arrived."""
        if not self._arrivals:
            self._on_busy(True)
        arrived = self._arrivals[generation] = self._clock()
        return arrived

    def receive(self, deliveries: Sequence[Delivery]) -> None:
        """Events of one pass of the engine's thread."""
        had_any = bool(self._arrivals)
        for generation, event in deliveries:
            generation.deliver(event)
            if generation.has_ended:
                self._arrivals.pop(generation, None)
        if had_any and not self._arrivals:
            self._on_busy(False)
        if not self._arrivals and self._all_ended is not None:
            self._all_ended.set()

    def waiting(self, begun: Container[str]) -> tuple[RequestStatus, ...]:
        """Those that stand in the queue, as far as the engine's thread has not `begun` them."""
        now = self._clock()
        return tuple(
            waiting_status(generation, now - arrived)
            for generation, arrived in tuple(self._arrivals.items())
            if generation.is_waiting and generation.request.id not in begun
        )

    async def all_end(self, seconds: float) -> bool:
        """Whether all have ended within so many seconds."""
        self._all_ended = asyncio.Event()
        if not self._arrivals:
            return True
        try:
            await asyncio.wait_for(self._all_ended.wait(), seconds)
        except TimeoutError:
            return False
        return True


def check_fit(request: GenerationRequest, context_size: int, budget: Budget | None) -> None:
    """Raises ContextOverflow, MemoryOverflow for what could not be answered beside nothing."""
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
