"""A server as a process: started on a port that was free a moment ago, stopped, killed, and
started again on the same one.

Its log goes to a temporary file, whose end is shown when it does not come up.
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
from typing import IO

import httpx2

import daemon
from daemon.bench.client import BenchFailed

PACKAGE_FOLDER = Path(daemon.__file__).parent.parent
START_SECONDS = 180.0
STOP_SECONDS = 90.0
"""More than any server is given to write down what it has."""

LOG_CHARACTERS = 2000


@dataclass(slots=True)
class ServerProcess:
    """`http` is a client of whichever process runs at the time."""

    arguments: Sequence[str]
    http: httpx2.AsyncClient
    _log: IO[bytes]
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it is ready to answer. Raises BenchFailed if it does not get there."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.arguments,
            stdout=self._log,
            stderr=self._log,
            cwd=PACKAGE_FOLDER,
        )
        await self._until_healthy(self._process)

    async def stop(self) -> None:
        """As a supervisor would: ask, then insist."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """At once: whatever it is in the middle of stays as it is."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def _until_healthy(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.returncode is None:
            try:
                if (await self.http.get("/health")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)
        raise BenchFailed(f"the server did not start:\n{self._last_words()}")

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-LOG_CHARACTERS:]


@asynccontextmanager
async def serving(arguments: Sequence[str]) -> AsyncIterator[ServerProcess]:
    """A server that is ready to answer; stopped in the end. `--port` is added to `arguments`."""
    port = _free_port()
    timeout = httpx2.Timeout(600.0, connect=10.0)
    with tempfile.TemporaryFile() as log:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=timeout, trust_env=False
        ) as http:
            process = ServerProcess([*arguments, "--port", str(port)], http, log)
            try:
                await process.start()
                yield process
            finally:
                await process.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
