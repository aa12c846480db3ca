"""`launchctl`, as far as one agent of one account needs it, with its exit codes told apart.

What each code means is in no manual; these are what the tool says with them: 3 and 113 no such
service (`bootout`, `print`), 5 and 37 it is still, or again, registered (`bootstrap`), 36 it is
being ended, 119 it is disabled, 125 the domain `gui/UID` does not exist: nobody is logged in at
the screen. Error 1 with "not permitted" is somebody else's service. Reaching the state that was
asked for counts, however it was reached; what else goes wrong is raised with the tool's own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launchd.errors import NoGuiSession, NotPermitted, ServiceError
from launchd.tools import Completed, Run

LAUNCHCTL = "/bin/launchctl"

OK, NOT_PERMITTED, NO_SUCH_PROCESS, STILL_REGISTERED = 0, 1, 3, 5
IN_PROGRESS, ALREADY, NO_SERVICE, NO_DOMAIN = 36, 37, 113, 125

BOOTSTRAP_ATTEMPTS = 5
PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 90.0
"""How long an agent may take to end; launchd kills it after the `ExitTimeOut` of its plist."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """What launchd knows of an agent. `last_exit` is None if it never ended, or not by itself:
    then `killed_by` names the signal, or the reason that the system had."""

    is_loaded: bool = False
    pid: int | None = None
    last_exit: int | None = None
    killed_by: str = ""
    plist: str = ""
    runs: int = 0

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    @property
    def has_crashed(self) -> bool:
        """Whether its last end was none that it chose: launchd is about to start it again."""
        return not self.is_running and (bool(self.killed_by) or self.last_exit not in (None, 0))


class Launchctl:
    """The agents of the account `uid`, in the domain of its session at the screen."""

    def __init__(self, run: Run, uid: int, sleep: Callable[[float], None]) -> None:
        self._run = run
        self._domain = f"gui/{uid}"
        self._sleep = sleep

    def state(self, label: str) -> AgentState:
        """Raises NoGuiSession, NotPermitted, ServiceError."""
        done = self._call("print", self._target(label))
        if done.returncode == OK:
            return parsed_state(done.stdout)
        if _is_absent(done):
            return AgentState()
        raise self._refusal(done)

    def bootout(self, label: str) -> None:
        """End the agent and forget it; returns when launchd has forgotten it."""
        done = self._call("bootout", self._target(label))
        may_wait = done.returncode in (OK, IN_PROGRESS)
        waited = 0.0
        while self.state(label).is_loaded:
            if not may_wait:
                raise self._refusal(done)
            if waited >= PATIENCE_SECONDS:
                raise ServiceError(f"launchd does not let go of {label}: {_words(done)}")
            self._sleep(PAUSE_SECONDS)
            waited += PAUSE_SECONDS

    def bootstrap(self, label: str, plist: Path) -> None:
        """Make the agent known, also one that was disabled; `RunAtLoad` starts it."""
        self._call("enable", self._target(label))
        for attempt in range(BOOTSTRAP_ATTEMPTS):
            if attempt:
                self._sleep(PAUSE_SECONDS)
            done = self._call("bootstrap", self._domain, str(plist))
            if done.returncode == OK:
                return
            if done.returncode not in (STILL_REGISTERED, ALREADY, IN_PROGRESS):
                break
            if self.state(label).is_loaded:
                return
        raise self._refusal(done)

    def kickstart(self, label: str) -> None:
        """Start it now; one that runs stays as it is."""
        done = self._call("kickstart", self._target(label))
        if done.returncode not in (OK, ALREADY):
            raise self._refusal(done)

    def _call(self, *arguments: str) -> Completed:
        return self._run((LAUNCHCTL, *arguments))

    def _target(self, label: str) -> str:
        return f"{self._domain}/{label}"

    def _refusal(self, done: Completed) -> ServiceError:
        words = _words(done)
        if done.returncode == NO_DOMAIN or "Could not find domain" in words:
            return NoGuiSession(
                "This account has no session at the screen, and agents start there: log in at "
                f"the Mac itself (or by screen sharing), then try again. ({words})"
            )
        if done.returncode == NOT_PERMITTED or "not permitted" in words.lower():
            return NotPermitted(
                "The service belongs to another account: run this as the account that installed "
                f"it, and without sudo. ({words})"
            )
        return ServiceError(f"launchctl {done.args[1]} failed with {done.returncode}: {words}")


def parsed_state(printed: str) -> AgentState:
    """The state in what `launchctl print` says of a service: indented `key = value` lines, of
    which only the outermost are the service's own."""
    found = dict(re.findall(r"^\t(\w[\w ]*) = ([^\n{]+)$", printed, flags=re.MULTILINE))
    return AgentState(
        is_loaded=True,
        pid=_number(found.get("pid", "")),
        last_exit=_number(found.get("last exit code", "")),
        killed_by=found.get("last terminating signal") or found.get("last exit reason") or "",
        plist=found.get("path", ""),
        runs=_number(found.get("runs", "")) or 0,
    )


def _number(text: str) -> int | None:
    """`last exit code = 78: EX_CONFIG` is 78, `(never exited)` none."""
    found = re.match(r"\s*(-?\d+)", text)
    return int(found[1]) if found else None


def _is_absent(done: Completed) -> bool:
    is_no_domain = "Could not find domain" in _words(done)
    return done.returncode in (NO_SUCH_PROCESS, NO_SERVICE) and not is_no_domain


def _words(done: Completed) -> str:
    """What the tool said, without its advice to use sudo: an agent is no business of root's."""
    said = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
    return " ".join(line.strip() for line in said if "as root for richer" not in line)
