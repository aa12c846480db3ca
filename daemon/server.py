"""uvicorn's server, as a daemon needs it: it sleeps while idle and ends with what it owes.

Where this differs from the stock server: the main loop waits for an event instead of ticking ten
times a second; signals are its own, so that a clean stop exits with 0 and not with -15, which
launchd counts as a crash; on stopping, the engine closes first, so that each open stream gets its
last event. Sockets are bound by the caller, before the
model loads. Nothing is logged of a request.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from daemon.connections import JsonProtocol
from daemon.signals import STOP_SIGNALS

KEEP_ALIVE_SECONDS = 180
"""Clients pool connections and do not repeat a POST that met a closed one."""

PENDING_CONNECTIONS = 1024
ACCEPTED_AT_ONCE = 16
"""Between two passes of the event loop, so that connections beyond what may be open are closed
before there are no more files: asyncio tries that often to accept one, and logs each failure."""

LAST_WORDS_SECONDS = 1.0
"""After the engine has closed: how long answers may take to write what is left."""


class Server(uvicorn.Server):
    """Serves until `stop` or a signal; then every task has its last word.

    Whoever sends a second signal does not want to wait for that: it calls `hurry`.
    `close(grace_seconds)` ends what the tasks wait for; it may outlast the grace where something
    cannot be interrupted, so the tasks do not wait for it longer than that.
    """

    def __init__(
        self,
        app: ASGIApp,
        close: Callable[[float], Awaitable[None]],
        grace_seconds: float,
        keep_alive_seconds: int = KEEP_ALIVE_SECONDS,
        most_connections: int | None = None,
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(_configuration(app, keep_alive_seconds, most_connections))
        self._hurry = hurry
        self._signals = 0
        self._hears_signals = False
        self._close = close
        self._grace_seconds = grace_seconds
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn has one number for both: how many may wait, and how many are accepted at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(PENDING_CONNECTIONS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """May be entered before `serve` already, by who starts more than this server."""
        if self._hears_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        former = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        self._hears_signals = True
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._told)
        try:
            yield
        finally:
            self._hears_signals = False
            for number, handler in former.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _told(self) -> None:
        self._signals += 1
        self.stop() if self._signals == 1 else self._hurry()

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        closing = asyncio.ensure_future(self._close(self._grace_seconds))
        await asyncio.wait({closing}, timeout=self._grace_seconds + LAST_WORDS_SECONDS)
        await self._end_tasks()
        await closing

    async def _end_tasks(self) -> None:
        """Let answers finish; cut those that do not, and then clients that do not read."""
        for task in await self._unfinished():
            task.cancel()
        if await self._unfinished():
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            await self._unfinished()

    async def _unfinished(self) -> set[asyncio.Task[None]]:
        """The tasks that are not done after a moment."""
        tasks = set(self.server_state.tasks)
        if not tasks:
            return tasks
        _, unfinished = await asyncio.wait(tasks, timeout=LAST_WORDS_SECONDS)
        return unfinished


def _configuration(
    app: ASGIApp, keep_alive_seconds: int, most_connections: int | None
) -> uvicorn.Config:
    """Values for all that uvicorn would otherwise take from the environment."""
    protocol: Any = partial(JsonProtocol, most_connections=most_connections)
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        backlog=ACCEPTED_AT_ONCE,
        workers=1,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        forwarded_allow_ips=[],
        server_header=False,
        date_header=False,
        timeout_keep_alive=keep_alive_seconds,
    )
