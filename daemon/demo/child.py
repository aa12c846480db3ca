"""A daemon of the demo's own: started on a free port, waited for, and stopped again."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2

from daemon.demo.report import DemoFailed

LOOK_SECONDS = 0.1
LOAD_SECONDS = 600.0
STOP_SECONDS = 10.0
TAIL_LINES = 12


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


EVERYDAY = ("--host", "--unix-socket", "--api-key-file", "--api-key-keychain")
ALONE = [word for flag in EVERYDAY for word in (flag, "none")]
"""What the daemon for every day is told of who may ask is not this one's business."""


MEMORY_ONLY = ("--disk-cache-bytes", "0")
"""Its day begins with nothing read, and leaves nothing behind."""


def serve_command(model: str, port: int) -> list[str]:
    """`mlxd serve`, by the interpreter that runs now."""
    flags = ["--model", model, "--port", str(port), *ALONE, *MEMORY_ONLY]
    return [sys.executable, "-m", "daemon.cli", "serve", *flags]


@asynccontextmanager
async def running_daemon(command: Sequence[str], port: int, log: Path) -> AsyncIterator[str]:
    """Run `command` until the block ends; gives the base URL once the model is ready.

    What the daemon prints goes to `log`. Raises DemoFailed, with the end of the log, if it exits
    or does not get ready.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            base_url = f"http://127.0.0.1:{port}"
            await _wait_until_ready(process, base_url, log)
            yield base_url
        finally:
            await _stop(process)


async def _wait_until_ready(process: Process, base_url: str, log: Path) -> None:
    try:
        async with (
            asyncio.timeout(LOAD_SECONDS),
            httpx2.AsyncClient(base_url=base_url, trust_env=False) as http,
        ):
            while not await _is_ready(http):
                if process.returncode is not None:
                    raise DemoFailed(_last_words(process.returncode, log))
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise DemoFailed(f"The daemon was not ready in {LOAD_SECONDS:.0f} s.{_tail(log)}") from None


async def _is_ready(http: httpx2.AsyncClient) -> bool:
    """Raises DemoFailed once the daemon says that its model cannot be loaded."""
    try:
        status = (await http.get("/mlxd/status")).json()
    except (httpx2.TransportError, ValueError):
        return False
    model = status["engine"]["model"]
    if model["state"] == "failed":
        raise DemoFailed(f"The model could not be loaded: {model['error']}")
    return bool(model["state"] == "ready")


async def _stop(process: Process) -> None:
    """SIGTERM, as a supervisor would; SIGKILL if that takes too long."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _last_words(code: int, log: Path) -> str:
    """Why the daemon ended: one sentence of its own for a wrong setting, else a piece of log."""
    if code == os.EX_CONFIG:
        return _lines(log)[-1]
    return f"The daemon ended with {code}.{_tail(log)}"


def _tail(log: Path) -> str:
    return "".join(f"\n    {line}" for line in _lines(log)[-TAIL_LINES:])


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
