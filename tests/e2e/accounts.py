"""`mlxd` as somebody's own: commands, and daemons with real models from a folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.e2e.processes import ROOT, START_SECONDS, Daemon, free_port


class Account:
    """Runs `mlxd` as the owner of `home`, about the daemon on `port`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        self.environment = {
            **{name: value for name, value in kept.items() if not name.startswith("MLXD_")},
            "HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_HUB_OFFLINE": "1",
            "MLXD_PORT": str(self.port),
            "MLXD_DISK_CACHE_BYTES": "0",
            "COLUMNS": "80",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "daemon.cli", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@contextmanager
def serving(account: Account, *arguments: str) -> Iterator[Daemon]:
    command = account.command("serve", *arguments)
    with subprocess.Popen(
        command, cwd=ROOT, env=account.environment, stderr=subprocess.PIPE, text=True
    ) as process:
        daemon = Daemon(process, account.port)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _is_up(daemon):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline, "the daemon did not come up"
                time.sleep(0.05)
            yield daemon
        finally:
            daemon.http.close()
            if process.poll() is None:
                process.kill()


def _is_up(daemon: Daemon) -> bool:
    try:
        return bool(daemon.http.get("/health").status_code)
    except httpx2.TransportError:
        return False
