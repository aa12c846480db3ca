"""The daemon as a service of launchd: installed, started, stopped and removed, each until it is so.

What launchd says of the agent and what the daemon answers are put together here: a start has
succeeded when the process that launchd runs answers on the port, and a stop is asked of the daemon
first, because only it ends cleanly. The same steps may be repeated at any time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daemon import __version__
from daemon.errors import CommandFailed, NotRunning
from daemon.starts import Starts
from daemon.status import DaemonStatus
from launchd.agent import Agent, Change
from launchd.launchctl import AgentState
from launchd.plist import AgentSpec

START_SECONDS = 60.0
"""From launchd's start of the process to its first answer; the first import is the longest part."""

SETTLE_SECONDS = 10.0
"""How long a model that loads is watched: one that is missing or damaged is found out by then."""

STOP_SECONDS = 135.0
"""How long running requests, and what is still to be written then, may hold up a stop before
launchd enforces it."""

POLL_SECONDS = 0.25
NOT_INSTALLED = (
    "The service is not installed. `mlxd install` does that, on macOS; `mlxd serve` runs a daemon "
    "in the foreground, and Ctrl-C ends it."
)


class Asked(Protocol):
    """The daemon on its port, as `client.Client` asks it."""

    def status(self) -> DaemonStatus: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """How time passes while something is waited for."""

    sleep: Callable[[float], None]
    clock: Callable[[], float]


def purged(folders: Iterable[Path], disk_folder: Path, daemon: Asked) -> list[Path]:
    """Delete folders, none of them under a running daemon; those that were there.

    `disk_folder` may be elsewhere, and have something of others in it, which stays.
    """
    from daemon.disk_cache.offline import clear

    try:
        found = daemon.status()
    except NotRunning:
        pass
    else:
        raise CommandFailed(f"A daemon still runs (process {found.pid}): end it, then try again.")
    deleted = [folder for folder in folders if _gone(folder, shutil.rmtree)]
    return [*deleted, disk_folder] if _gone(disk_folder, clear) else deleted


def _gone(folder: Path, delete: Callable[[Path], None]) -> bool:
    """Whether there was anything; it may have gone with a folder that it was in."""
    if not folder.is_dir():
        return False
    try:
        delete(folder)
    except OSError as error:
        raise CommandFailed(f"{folder} cannot be deleted: {error}") from error
    return True


class Service:
    """Methods raise CommandFailed, and ServiceError where launchd refuses."""

    def __init__(self, agent: Agent, daemon: Asked, starts: Starts, waiting: Waiting) -> None:
        self._agent = agent
        self._daemon = daemon
        self._starts = starts
        self._waiting = waiting

    def install(self, spec: AgentSpec, settings: str) -> tuple[Change, DaemonStatus]:
        """`settings` is the digest of those that are in force now: a daemon that runs with others,
        or is of another version, is started anew."""
        found = self._answer()
        if found is not None and found.pid != self._agent.state().pid:
            raise CommandFailed(
                f"On port {found.port} runs a daemon that is not the service (process "
                f"{found.pid}). Stop it first, or choose another port: `mlxd config set port N`."
            )
        current = (__version__, settings)
        must_renew = found is None or (found.version, found.settings) != current
        self._starts.forget_refusal()
        change = self._agent.install(spec, must_renew=must_renew)
        return change, self._until_it_answers()

    def uninstall(self) -> bool:
        """Whether there was a service."""
        self._asked_to_stop()
        return self._agent.uninstall()

    def start(self) -> DaemonStatus:
        self._require_installed()
        self._starts.forget_refusal()
        self._agent.start()
        return self._until_it_answers()

    def stop(self) -> bool:
        """Whether anything ran. It stays installed, and starts again at the next login."""
        self._require_installed()
        before = self._agent.state()
        self._ended(before)
        return before.is_running

    def restart(self) -> DaemonStatus:
        self._require_installed()
        self._ended(self._agent.state())
        return self.start()

    def _require_installed(self) -> None:
        if not self._agent.is_installed:
            raise CommandFailed(NOT_INSTALLED)

    def _answer(self) -> DaemonStatus | None:
        """None where nothing listens. A stranger on the port, or a daemon that does not answer as
        one of this version, is None, too: then launchd alone decides."""
        try:
            return self._daemon.status()
        except CommandFailed:
            return None

    def _is_ours(self, found: DaemonStatus | None) -> bool:
        return found is not None and found.pid == self._agent.state().pid

    def _ended(self, before: AgentState) -> None:
        """By launchd only if it hangs, answers elsewhere, or would start again after a crash."""
        is_at_rest = not before.is_running and not before.has_crashed
        if before.is_loaded and not is_at_rest and not self._asked_to_stop():
            self._agent.end()

    def _asked_to_stop(self) -> bool:
        """Whether the service was asked, and came to a clean end."""
        found = self._answer()
        if found is None or not self._is_ours(found):
            return False
        try:
            self._daemon.stop()
        except CommandFailed:
            return False
        deadline = self._waiting.clock() + STOP_SECONDS
        while (state := self._agent.state()).pid == found.pid:
            if self._waiting.clock() >= deadline:
                return False
            self._waiting.sleep(POLL_SECONDS)
        return not state.is_running and not state.has_crashed

    def _until_it_answers(self) -> DaemonStatus:
        """A model that cannot be served ends the daemon soon after its first answer."""
        deadline = self._waiting.clock() + START_SECONDS
        settled = None
        while True:
            found, now = self._answer(), self._waiting.clock()
            if found is not None and self._is_ours(found):
                settled = now + SETTLE_SECONDS if settled is None else settled
                if found.engine.model.state != "loading" or now >= settled:
                    return found
            self._give_up_if_refused()
            if now >= deadline:
                raise NotRunning(self._silence())
            self._waiting.sleep(POLL_SECONDS)

    def _give_up_if_refused(self) -> None:
        refusal = self._starts.read().refusal
        if refusal and not self._agent.state().is_running:
            raise CommandFailed(f"The service started, but cannot run: {refusal}")

    def _silence(self) -> str:
        state = self._agent.state()
        code = "" if state.last_exit is None else f" Its last exit code was {state.last_exit}."
        ended = f" It was ended by {state.killed_by}." if state.killed_by else code
        return f"The service does not answer after {START_SECONDS:.0f} s.{ended} See `mlxd logs`."
