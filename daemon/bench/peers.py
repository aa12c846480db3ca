"""The servers that are measured: how each is asked about itself, and interrupted.

Each runs in a process of its own, with default settings but for what it keeps on disk: nothing,
unless it is to be interrupted, and then in a folder that is gone in the end.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2
from pydantic import TypeAdapter

from daemon.bench.client import BenchFailed, ReadProgress
from daemon.bench.server_process import ServerProcess, serving
from daemon.bench.traffic import Interruption
from daemon.demo.child import ALONE, MEMORY_ONLY
from daemon.status import DaemonStatus, EngineStatus

SETTLE_SECONDS = 30.0
STAGE_SECONDS = 60.0
LOOK_SECONDS = 0.02
ON_DISK = ("--disk-cache-bytes", "16GB", "--disk-cache-idle-seconds", "1", "--keep-alive", "2s")
"""Whatever the daemon for every day keeps; and nobody waits half an hour for a model to leave."""

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

    @property
    def http(self) -> httpx2.AsyncClient: ...

    async def read_progress(self) -> ReadProgress | None:
        """How far the prompt at work has been read; None if that is not known this way."""

    async def tally(self) -> Tally | None:
        """Taken when nothing runs any more; None from servers that do not tell."""

    async def last_cancelled(self) -> Reading | None:
        """What the request that was cancelled last had come to; None if the server is silent."""

    async def interrupt(self, interruption: Interruption) -> None:
        """Let it happen; returns when the server is ready to answer, or left alone."""


@dataclass(slots=True)
class Mlxd:
    process: ServerProcess
    name: str = "mlxd"
    model: str = ""

    @property
    def http(self) -> httpx2.AsyncClient:
        return self.process.http

    async def status(self) -> DaemonStatus:
        response = await self.http.get("/mlxd/status")
        return _STATUS.validate_json(response.content)

    async def read_progress(self) -> ReadProgress | None:
        running = (await self.status()).engine.running
        return (running[0].reused + running[0].read, running[0].prompt) if running else None

    async def settled(self) -> DaemonStatus:
        """The status once nothing runs or waits."""
        return await self._once(
            lambda engine: not engine.running and not engine.waiting,
            SETTLE_SECONDS,
            "the daemon still runs requests that were cancelled",
        )

    async def tally(self) -> Tally | None:
        engine = (await self.settled()).engine
        return Tally(engine.totals.read, engine.cache.bytes)

    async def last_cancelled(self) -> Reading | None:
        recent = (await self.settled()).engine.recent
        cancelled = [request for request in recent if request.phase == "cancelled"]
        return Reading(cancelled[-1].reused, cancelled[-1].read) if cancelled else None

    async def interrupt(self, interruption: Interruption) -> None:
        match interruption:
            case Interruption.RESTART:
                await self.process.restart()
            case Interruption.UNLOAD:
                await self._once(_has_left, STAGE_SECONDS, "the model does not leave memory")
            case Interruption.SAVE:
                await self._once(_is_saved, STAGE_SECONDS, "what was read is not saved")
            case Interruption.KILL:
                await self._until_it_writes()
                await self.process.kill()
                await self.process.start()

    async def _once(
        self, is_true: Callable[[EngineStatus], bool], seconds: float, otherwise: str
    ) -> DaemonStatus:
        """The status once `is_true` of the engine; BenchFailed with the words of `otherwise`."""
        deadline = time.monotonic() + seconds
        while not is_true((status := await self.status()).engine):
            if time.monotonic() > deadline:
                raise BenchFailed(otherwise)
            await asyncio.sleep(LOOK_SECONDS)
        return status

    async def _until_it_writes(self) -> None:
        """Seen in the folder itself: by the time that the status says so, it has been done."""
        folder = Path((await self.status()).engine.disk.folder)
        before, deadline = _files(folder), time.monotonic() + STAGE_SECONDS
        while not _files(folder) - before:
            if time.monotonic() > deadline:
                raise BenchFailed("the daemon never wrote what it read")
            await asyncio.sleep(0.001)


def _files(folder: Path) -> set[Path]:
    return set(folder.glob("*/*"))


def _is_saved(engine: EngineStatus) -> bool:
    reached = {stage.name for stage in engine.model.stages if stage.is_reached}
    return "saved" in reached and not engine.disk.pending_bytes


def _has_left(engine: EngineStatus) -> bool:
    return engine.model.state == "unloaded" and _is_saved(engine) and not engine.cache.bytes


@dataclass(slots=True)
class MlxLm:
    """`mlx_lm.server`. It tells its progress in the stream, and nothing about what it holds. It
    keeps nothing but in memory, which it gives back by ending."""

    process: ServerProcess
    name: str = "mlx-lm"
    model: str = "default_model"

    @property
    def http(self) -> httpx2.AsyncClient:
        return self.process.http

    async def read_progress(self) -> ReadProgress | None:
        return None

    async def tally(self) -> Tally | None:
        return None

    async def last_cancelled(self) -> Reading | None:
        return None

    async def interrupt(self, interruption: Interruption) -> None:
        if interruption is not Interruption.SAVE:
            await self.process.restart()


@asynccontextmanager
async def mlxd(model: str, *flags: str) -> AsyncIterator[Mlxd]:
    """A fresh daemon with this model, ready to answer, that keeps what it read in memory only."""
    async with _daemon(model, *MEMORY_ONLY, *flags) as server:
        yield server


@asynccontextmanager
async def mlxd_with_disk(model: str, *flags: str) -> AsyncIterator[Mlxd]:
    """The same with a disk cache of its own, whose stages of idleness follow soon."""
    with tempfile.TemporaryDirectory() as folder:
        async with _daemon(model, "--disk-cache-folder", folder, *ON_DISK, *flags) as server:
            yield server


@asynccontextmanager
async def _daemon(model: str, *flags: str) -> AsyncIterator[Mlxd]:
    arguments = ["-m", "daemon.cli", "serve", "--model", model, *ALONE, *flags]
    async with serving(arguments) as process:
        server = Mlxd(process)
        server.model = (await server.status()).engine.model.name
        yield server


@asynccontextmanager
async def mlx_lm(model: str) -> AsyncIterator[MlxLm]:
    """A fresh `mlx_lm.server` with this model, ready to answer."""
    async with serving(["-c", _PEER, "--model", model]) as process:
        yield MlxLm(process)
