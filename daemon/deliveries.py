"""From the engine's thread to the event loop: the one way that events take.

The thread collects the events of one pass in an `Outbox` and posts them with a single
`call_soon_threadsafe`; the loop hands each to its `Generation`, where the client's task awaits
it. A `Generation` belongs to its event loop, an `Outbox` to the engine's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time
from typing import TypeAlias

from daemon.generation import (
    Failed,
    Finished,
    Generated,
    GenerationEvent,
    GenerationRequest,
    Started,
)


class Generation:
    """A running request: an async iterator of its events, for one consumer.

    It ends after exactly one terminal event, `Finished` or `Failed`. `Generated` events that
    pile up are handed out as one. Whoever stops listening calls `finish` if its answer is whole, or
    else `cancel`; the first to be called counts. The flags tell what has arrived from the engine,
    though perhaps nobody has taken it yet, and what was asked for;
    `arrived_at` is a date in seconds of the Unix epoch.
    """

    def __init__(
        self,
        request: GenerationRequest,
        loop: asyncio.AbstractEventLoop,
        on_stop: Callable[[Generation, bool], None],
    ) -> None:
        self.request = request
        self.loop = loop
        self._on_stop = on_stop
        self._events: deque[GenerationEvent] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self.arrived_at = time()
        self.started: Started | None = None
        self.has_ended = False
        self.is_stopped = False

    def cancel(self) -> None:
        """Stop within one chunk or one step, from any phase; what was read by then is kept.

        Idempotent. The terminal event still comes.
        """
        self._stop(is_whole=False)

    def finish(self) -> None:
        """Stop as `cancel` does, because what was generated ends the answer: it counts as done."""
        self._stop(is_whole=True)

    def _stop(self, *, is_whole: bool) -> None:
        if not self.is_stopped and not self.has_ended:
            self.is_stopped = True
            self._on_stop(self, is_whole)

    @property
    def has_started(self) -> bool:
        return self.started is not None

    async def begun(self, seconds: float) -> Started | None:
        """How it started, once it has or has ended; None if that takes longer than `seconds`.

        For its one consumer, who has not begun to iterate.
        """
        if not self._events and not self.has_ended:
            self._arrival = self.loop.create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrival, seconds)
        return self.started

    @property
    def is_waiting(self) -> bool:
        """Whether it stands in the queue: a cancelled one has left it already."""
        return not (self.has_started or self.is_stopped or self.has_ended)

    def deliver(self, event: GenerationEvent) -> None:
        """Take one event from the engine; on the loop."""
        if self.has_ended:
            return
        if isinstance(event, Started):
            self.started = event
        self.has_ended = isinstance(event, Finished | Failed)
        self._events.append(event)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> GenerationEvent:
        while not self._events:
            if self.has_ended:
                raise StopAsyncIteration
            self._arrival = self.loop.create_future()
            await self._arrival
        event = self._events.popleft()
        return self._merged(event) if isinstance(event, Generated) else event

    def _merged(self, event: Generated) -> Generated:
        if not self._events or not isinstance(self._events[0], Generated):
            return event
        tokens, scores = list(event.tokens), list(event.scores)
        while self._events and isinstance(following := self._events[0], Generated):
            tokens += following.tokens
            scores += following.scores
            self._events.popleft()
        return Generated(tuple(tokens), tuple(scores))


Delivery: TypeAlias = tuple[Generation, GenerationEvent]


class Outbox:
    """Events of one pass of the engine's loop, posted together."""

    def __init__(self, receive: Callable[[Sequence[Delivery]], None]) -> None:
        self._receive = receive
        self._deliveries: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}

    def put(self, generation: Generation, event: GenerationEvent) -> None:
        self._deliveries.setdefault(generation.loop, []).append((generation, event))

    def post(self) -> None:
        """Wake each event loop once with all it has to hear."""
        if not self._deliveries:
            return
        deliveries, self._deliveries = self._deliveries, {}
        for loop, batch in deliveries.items():
            with suppress(RuntimeError):  # the loop was closed: nobody listens any more
                loop.call_soon_threadsafe(self._receive, batch)
