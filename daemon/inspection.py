"""Questions to the engine's thread: asked from the event loop, answered between two chunks.

Whoever wants to see or change what belongs to that thread sends a function there; it gets an
`Inspection` and may read and change what it finds, but keep nothing of it. Its result, or what it
raised, comes back to the loop that asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Records
from daemon.sessions import Sessions
from daemon.status import ModelStatus


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the engine's thread owns of one model, for the time of one question, whether its
    weights are loaded or not. `now` is the engine's clock's."""

    cache: PrefixCache
    sessions: Sessions
    records: Records
    model: ModelStatus
    now: float


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One question on its way. `answer` belongs to `loop`; the methods run on any thread."""

    ask: Callable[[Sequence[Inspection]], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]

    def put_to(self, inspections: Sequence[Inspection]) -> Callable[[], None]:
        """Ask it, on the engine's thread; what is returned sends the answer off.

        `inspections`: of every model with a tree, the last used first.
        """
        try:
            result = self.ask(inspections)
        except Exception as raised:
            error = raised  # the except clause unbinds its own name
            return lambda: self.fail(error)
        return lambda: self._send(self._resolve, result)

    def fail(self, error: Exception) -> None:
        self._send(self._raise, error)

    def _send(self, settle: Callable[[Any], None], value: object) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(settle, value)

    def _resolve(self, result: object) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def _raise(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
