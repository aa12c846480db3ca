"""The way back from the engine's thread to whoever on the event loop waits for its word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What somebody waits for on `loop`. Its methods may be called on any thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def send(self, value: object) -> None:
        self._send(self.future.set_result, value)

    def fail(self, error: Exception) -> None:
        self._send(self.future.set_exception, error)

    def _send(self, settle: Callable[[Any], None], value: object) -> None:
        def unless_gone() -> None:
            if not self.future.done():
                settle(value)

        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(unless_gone)


class Replies:
    """Those that are waited for, so that none is waited for in vain when the thread dies."""

    def __init__(self) -> None:
        self._open: set[Reply] = set()
        self._end: Exception | None = None

    @contextmanager
    def awaited(self) -> Iterator[Reply]:
        """One for the time of the block. Raises what failed them all, if that is past."""
        loop = asyncio.get_running_loop()
        reply = Reply(loop, loop.create_future())
        self._open.add(reply)
        try:
            if self._end is not None:  # looked at only now: see `fail_all`
                raise self._end.with_traceback(None)
            yield reply
        finally:
            self._open.discard(reply)

    def fail_all(self, error: Exception) -> None:
        """On the dying thread. A reply that is not among the open ones by now finds the error."""
        self._end = error
        for reply in tuple(self._open):
            reply.fail(error)
