"""A recorded fake of `launchctl`: what the real one answers, in which state, with which words.

Exit codes and texts are those of the tool's public reports on macOS 11 to 15. A program "runs" as
soon as its agent is bootstrapped; a test says how it ends, and what the domain is like.
"""

import plistlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

UID = 501
LABEL = "dev.mlxd.daemon"
NO_SERVICE = 'Bad request.\nCould not find service "{}" in domain for user gui: 501\n'
FIRST_PID = 4242


@dataclass
class Job:
    plist: str
    pid: int | None = None
    last_exit: int | None = None
    killed_by: str = ""
    runs: int = 0

    def printed(self, target: str) -> str:
        """As `launchctl print` draws a service, with blocks that have keys of the same names."""
        code = "(never exited)" if self.last_exit is None else str(self.last_exit)
        end = f"last exit code = {code}"
        if self.killed_by:  # in place of the code, also while the next one runs
            end = f"last terminating signal = {self.killed_by}"
        pid = f"\tpid = {self.pid}\n" if self.pid else ""
        return (
            f"{target} = {{\n\tactive count = {1 if self.pid else 0}\n\tpath = {self.plist}\n"
            f"\ttype = LaunchAgent\n\tstate = {'running' if self.pid else 'not running'}\n\n"
            "\tprogram = /opt/bin/mlxd\n\targuments = {\n\t\t/opt/bin/mlxd\n\t\tserve\n\t}\n\n"
            "\tenvironment = {\n\t\tpid = 1\n\t\tpath = /elsewhere\n\t}\n\n"
            f"\truns = {self.runs}\n"
            f"{pid}\timmediate reason = speculative\n\t{end}\n"
            "\n\tresource coalition = {\n\t\tstate = active\n\t\tlast exit code = 9\n\t}\n"
            "\n\tspawn type = interactive (4)\n}\n"
        )


@dataclass
class FakeLaunchctl:
    """Called like `launchd.tools.run_tool`. `bootouts` answer first, one each, with a code; a job
    whose bootout says 36 is gone after `teardown` more looks. `started` hears of each new pid, and
    of 0 for a program that exits at once."""

    jobs: dict[str, Job] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    has_session: bool = True
    is_permitted: bool = True
    is_disabled: bool = False
    bootouts: list[int] = field(default_factory=list)
    bootstraps: list[int] = field(default_factory=list)
    teardown: int = 0
    exits_at_once: int | None = None
    started: Callable[[int], None] = lambda pid: None
    next_pid: int = FIRST_PID

    def __call__(self, arguments: Sequence[str]) -> CompletedProcess[str]:
        tool, verb, *rest = arguments
        assert tool == "/bin/launchctl"
        self.calls.append((verb, *rest))
        code, out, error = getattr(self, f"_{verb}")(*rest)
        return CompletedProcess(arguments, code, out, error)

    def done(self, *but: str) -> list[str]:
        """The verbs so far, without those that only look."""
        return [call[0] for call in self.calls if call[0] not in {"print", *but}]

    def ends(self, code: int | None, killed_by: str = "", label: str = LABEL) -> None:
        """The program ends; launchd would not start it again before its throttle is over."""
        job = self.jobs[label]
        job.pid, job.last_exit, job.killed_by = None, code, killed_by

    def _print(self, target: str):
        label = self._label(target)
        if not self.has_session:
            return 113, "", "Bad request.\nCould not find domain for user gui: 501\n"
        if not self.is_permitted:
            return 1, "", "Could not print service: 1: Operation not permitted\n"
        if label in self.jobs and self.teardown and self.jobs[label].pid == -1:
            self.teardown -= 1
            if not self.teardown:
                del self.jobs[label]
        if label not in self.jobs:
            return 113, "", NO_SERVICE.format(label)
        return 0, self.jobs[label].printed(target), ""

    def _bootout(self, target: str):
        label = self._label(target)
        if self.bootouts:
            code = self.bootouts.pop(0)
            if code == 36:
                self.jobs[label].pid = -1
                return 36, "", "Boot-out failed: 36: Operation now in progress\n"
            words = "Input/output error" if code == 5 else "Operation not permitted"
            return code, "", f"Boot-out failed: {code}: {words}\n"
        if label not in self.jobs:
            return 3, "", "Boot-out failed: 3: No such process\n"
        del self.jobs[label]
        return 0, "", ""

    def _enable(self, target: str):
        self.is_disabled = False
        return 0, "", ""

    def _bootstrap(self, domain: str, plist: str):
        assert domain == f"gui/{UID}"
        if not self.has_session:
            return 125, "", "Bootstrap failed: 125: Domain does not support specified action\n"
        if self.is_disabled:
            return 119, "", "Bootstrap failed: 119: Service is disabled\n"
        if self.bootstraps:
            code = self.bootstraps.pop(0)
            words = {5: "Input/output error", 37: "Operation already in progress"}[code]
            advice = "Try re-running the command as root for richer errors."
            return code, "", f"Bootstrap failed: {code}: {words}\n{advice}\n"
        label = plistlib.loads(Path(plist).read_bytes())["Label"]
        if label in self.jobs:
            return 37, "", "Bootstrap failed: 37: Operation already in progress\n"
        self.jobs[label] = Job(plist)
        self._spawn(label)
        return 0, "", ""

    def _kickstart(self, target: str):
        label = self._label(target)
        if label not in self.jobs:
            return 113, "", NO_SERVICE.format(label)
        if self.jobs[label].pid is None:
            self._spawn(label)
        return 0, "", ""

    def _spawn(self, label: str) -> None:
        job = self.jobs[label]
        job.runs += 1
        if self.exits_at_once is not None:
            job.pid, job.last_exit = None, self.exits_at_once
            self.started(0)
            return
        job.pid, self.next_pid = self.next_pid, self.next_pid + 1
        self.started(job.pid)

    def _label(self, target: str) -> str:
        domain, uid, label = target.split("/")
        assert (domain, uid) == ("gui", str(UID)), "another account's domain is none of ours"
        return label
