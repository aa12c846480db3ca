"""What the benchmark does to a daemon in between, on daemons with a scripted model."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from daemon.bench.client import Reply, ask
from daemon.bench.peers import Mlxd
from daemon.bench.server_process import ServerProcess
from daemon.bench.traffic import Interruption
from tests.e2e.processes import free_port
from tests.fakes import filler

HEAD = filler(1_200, 1)


@dataclass
class Asking:
    """A daemon, and one conversation with it."""

    server: Mlxd
    folder: Path

    async def ask(self, text: str) -> Reply:
        messages = [{"role": "user", "content": text}]
        return await ask(self.server.http, {"messages": messages, "max_tokens": 4})

    async def instance(self) -> str:
        return (await self.server.status()).instance

    @property
    def files(self) -> set[Path]:
        return set(self.folder.glob("*/*.safetensors"))


@asynccontextmanager
async def scripted(folder: Path, **settings: Any) -> AsyncIterator[Asking]:
    port = free_port()
    with tempfile.TemporaryFile() as log:
        options = {
            "disk": str(folder),
            "settings": {"disk_cache_idle_seconds": 0.3, "disk_cache_free_bytes": 0, **settings},
        }
        command = ["-m", "tests.e2e.scripted_daemon", str(port), json.dumps(options)]
        base_url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=base_url, trust_env=False) as http:
            process = ServerProcess(command, http, log)
            try:
                await process.start()
                yield Asking(Mlxd(process), folder)
            finally:
                await process.stop()


def test_a_daemon_is_restarted_left_alone_and_killed_in_the_middle_of_a_write(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with scripted(tmp_path, keep_alive="1s") as at:
            first = await at.instance()
            await at.ask(HEAD + "one")
            await at.server.interrupt(Interruption.SAVE)
            assert (await at.instance(), len(at.files)) == (first, 2)
            await at.server.interrupt(Interruption.UNLOAD)
            engine = (await at.server.status()).engine
            assert (engine.model.state, engine.cache.bytes) == ("unloaded", 0)
            again = await at.ask(HEAD + "one")
            assert (await at.instance(), again.reused) == (first, again.prompt - 1)
            longer = HEAD + filler(9_000, 2)
            await at.ask(longer)
            await at.server.interrupt(Interruption.KILL)
            second = await at.instance()
            after = await at.ask(longer)
            assert len(HEAD) <= after.reused < after.prompt - 1024, "killed at its first file"
            await at.server.interrupt(Interruption.RESTART)
            assert len({first, second, await at.instance()}) == 3
            assert (await at.ask(longer)).reused == after.prompt - 1

    asyncio.run(asyncio.wait_for(scenario(), 60))
