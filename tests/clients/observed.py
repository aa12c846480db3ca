"""A running daemon with a scripted model, and what it saw of a client.

Requests are told apart by their text: a conversation is all requests that offer tools and whose
body names the same script first. What has no tools is a side request (a title, for instance).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from tests.clients.script import Scripts, dumped
from tests.e2e.processes import ROOT, free_port

START_SECONDS = 60.0
BOUND_SECONDS = 60.0
SPARE_TOKENS = 64
"""What may be read beyond the new tokens: where texts meet they are tokenised anew."""

_NAMED = re.compile(r"\[script:([\w-]+)\]")


@dataclass(frozen=True)
class Exchange:
    """A request over HTTP; `seen` is what the daemon's engine says of it, None if it had none."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int | None
    answer: str
    seen: dict[str, Any] | None

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body else {}

    @property
    def script(self) -> str | None:
        """The script that the body names first."""
        found = _NAMED.search(self.body)
        return found[1] if found else None

    @property
    def session(self) -> str | None:
        """What the daemon took for its session's name."""
        return self.seen["session"] if self.seen else None

    @property
    def has_tools(self) -> bool:
        return bool(self.fields.get("tools"))

    @property
    def numbers(self) -> str:
        """For a failed assertion."""
        counts = self.seen or {}
        shown = ("phase", "session", "prompt", "reused", "read", "generated")
        told = ", ".join(f"{name} {counts.get(name)}" for name in shown)
        reason = (counts.get("reason") or {}).get("sentence", "")
        return f"{self.method} {self.path} {self.status}: {told}; {reason}"


class ObservedDaemon:
    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.process = process
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._http = httpx2.Client(base_url=self.base_url, timeout=BOUND_SECONDS, trust_env=False)

    def close(self) -> None:
        self._http.close()
        self.process.terminate()
        try:
            self.process.wait(BOUND_SECONDS)
        finally:
            self.process.kill()

    def engine(self) -> dict[str, Any]:
        return self._http.get("/mlxd/status").json()["engine"]

    def wait_until(self, is_true: Callable[[dict[str, Any]], bool], what: str) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while not is_true(engine := self.engine()):
            assert time.monotonic() < deadline, f"not {what}: {engine}"
            time.sleep(0.05)

    def wait_until_it_says(self, tokens: int) -> None:
        """Until some request's answer is that long, and goes on."""
        self.wait_until(
            lambda engine: any(each["generated"] >= tokens for each in engine["running"]),
            f"{tokens} tokens into an answer",
        )

    def wait_until_idle(self) -> None:
        self.wait_until(lambda engine: not engine["running"] and not engine["waiting"], "idle")

    def exchanges(self) -> list[Exchange]:
        """All requests but this test's own, in the order of their arrival."""
        self.wait_until_idle()
        seen = {each["id"]: each for each in self._http.get("/mlxd/requests").json()["data"]}
        lines = self._journal()
        found = [(line["arrived"], _exchange(line, seen)) for line in lines]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    def _journal(self) -> list[dict[str, Any]]:
        journal = self._folder / "journal.jsonl"
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
        return [
            each for line in lines if not (each := json.loads(line))["path"].startswith("/mlxd")
        ]


def _exchange(line: dict[str, Any], seen: dict[str, Any]) -> Exchange:
    return Exchange(
        line["method"],
        line["path"],
        line["headers"],
        line["body"],
        line["status"],
        line["answer"],
        seen.get(line["answer_headers"].get("x-request-id", "")),
    )


def conversation(exchanges: Sequence[Exchange], script: str) -> list[Exchange]:
    """The requests of a conversation that began with `script`."""
    posts = [each for each in exchanges if each.method == "POST" and each.seen is not None]
    return [each for each in posts if each.script == script and each.has_tools]


def refused(exchanges: Sequence[Exchange]) -> list[str]:
    """POSTs that got a 4xx or 5xx, and why."""
    return [
        f"{each.method} {each.path} {each.status}: {each.answer[:500]}"
        for each in exchanges
        if each.method == "POST" and (each.status or 0) >= 400
    ]


def overread(requests: Sequence[Exchange], spare: int = SPARE_TOKENS) -> list[str]:
    """The requests that read more than what is new since the one before, and its answer."""
    found = []
    for before, after in pairwise(requests):
        assert before.seen is not None
        assert after.seen is not None
        known = before.seen["prompt"] + before.seen["generated"]
        if after.seen["read"] > max(0, after.seen["prompt"] - known) + spare:
            found.append(f"{after.numbers}\n  after {before.numbers}")
    return found


@contextmanager
def observed(model: Path, folder: Path, scripts: Scripts | None) -> Iterator[ObservedDaemon]:
    """A daemon that is ready. `folder` is its own; what it prints is in `daemon.log`.

    Without scripts the model says what it likes.
    """
    folder.mkdir(parents=True)
    (folder / "model").symlink_to(model)
    if scripts is not None:
        (folder / "scripts.json").write_text(json.dumps(dumped(scripts)), encoding="utf-8")
    port = free_port()
    command = [sys.executable, str(ROOT / "tests/clients/daemon_process.py"), str(port)]
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )
    daemon = ObservedDaemon(process, port, folder)
    try:
        _wait_until_ready(daemon, folder / "daemon.log")
        yield daemon
    finally:
        daemon.close()


def _wait_until_ready(daemon: ObservedDaemon, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert daemon.process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, "the daemon did not come up"
        try:
            if daemon.engine()["model"]["state"] == "ready":
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.05)
