"""The servers that are measured: how each is started, asked about itself, and stopped.

Each runs in a process of its own with default settings, on a port that was free a moment ago,
and writes its log to a temporary file whose end is shown when it does not come up.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import httpx2
from pydantic import TypeAdapter

import daemon
from daemon.bench.client import BenchFailed, ReadProgress
from daemon.demo.child import ALONE, MEMORY_ONLY
from daemon.status import DaemonStatus

PACKAGE_FOLDER = Path(daemon.__file__).parent.parent
START_SECONDS = 180.0
SETTLE_SECONDS = 30.0
_STATUS = TypeAdapter(DaemonStatus)
_PEER = (
    "from mlx_backend.blas import prefer_openblas; prefer_openblas()\n"
    "from mlx_lm.server import main; main()"
)


@dataclass(frozen=True, slots=True)
class Tally:
    """What a server says it has done and holds. Tokens, bytes."""

    read: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Prompt tokens of one request that were restored, and that were read."""

    reused: int
    read: int


class Server(Protocol):
    """One running server."""

    name: str
    model: str
    http: httpx2.AsyncClient

    async def read_progress(self) -> ReadProgress | None:
        """How far the prompt at work has been read; None if that is not known this way."""

    async def tally(self) -> Tally | None:
        """Taken when nothing runs any more; None from servers that do not tell."""

    async def last_cancelled(self) -> Reading | None:
        """What the request that was cancelled last had come to; None if the server is silent."""


@dataclass(slots=True)
class Mlxd:
    http: httpx2.AsyncClient
    name: str = "mlxd"
    model: str = ""

    async def status(self) -> DaemonStatus:
        response = await self.http.get("/mlxd/status")
        return _STATUS.validate_json(response.content)

    async def read_progress(self) -> ReadProgress | None:
        running = (await self.status()).engine.running
        return (running[0].reused + running[0].read, running[0].prompt) if running else None

    async def settled(self) -> DaemonStatus:
        """The status once nothing runs or waits."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            status = await self.status()
            if not status.engine.running and not status.engine.waiting:
                return status
            if time.monotonic() > deadline:
                raise BenchFailed("the daemon still runs requests that were cancelled")
            await asyncio.sleep(0.02)

    async def tally(self) -> Tally | None:
        engine = (await self.settled()).engine
        return Tally(engine.totals.read, engine.cache.bytes)

    async def last_cancelled(self) -> Reading | None:
        recent = (await self.settled()).engine.recent
        cancelled = [request for request in recent if request.phase == "cancelled"]
        return Reading(cancelled[-1].reused, cancelled[-1].read) if cancelled else None


@dataclass(slots=True)
class MlxLm:
    """`mlx_lm.server`. It tells its progress in the stream, and nothing about what it holds."""

    http: httpx2.AsyncClient
    name: str = "mlx-lm"
    model: str = "default_model"

    async def read_progress(self) -> ReadProgress | None:
        return None

    async def tally(self) -> Tally | None:
        return None

    async def last_cancelled(self) -> Reading | None:
        return None


@asynccontextmanager
async def mlxd(model: str) -> AsyncIterator[Mlxd]:
    """A fresh daemon with this model, ready to answer."""
    arguments = ["-m", "daemon.cli", "serve", "--model", model, *ALONE, *MEMORY_ONLY]
    async with _serving(arguments) as http:
        server = Mlxd(http)
        server.model = (await server.status()).engine.model.name
        yield server


@asynccontextmanager
async def mlx_lm(model: str) -> AsyncIterator[MlxLm]:
    """A fresh `mlx_lm.server` with this model, ready to answer."""
    async with _serving(["-c", _PEER, "--model", model]) as http:
        yield MlxLm(http)


@asynccontextmanager
async def _serving(arguments: Sequence[str]) -> AsyncIterator[httpx2.AsyncClient]:
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            "--port",
            str(port),
            stdout=log,
            stderr=log,
            cwd=PACKAGE_FOLDER,
        )
        try:
            timeout = httpx2.Timeout(600.0, connect=10.0)
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=timeout, trust_env=False
            ) as http:
                await _until_healthy(http, process, log)
                yield http
        finally:
            await _stop(process)


async def _until_healthy(
    http: httpx2.AsyncClient, process: asyncio.subprocess.Process, log: IO[bytes]
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.returncode is not None:
            break
        try:
            if (await http.get("/health")).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        await asyncio.sleep(0.1)
    log.seek(0)
    tail = log.read().decode(errors="replace")[-2000:]
    raise BenchFailed(f"the server did not start:\n{tail}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), timeout=15)
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
