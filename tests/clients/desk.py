"""An agent at work: a home and a project of its own, one process at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.agent import SESSION, TASK, Agent
from tests.clients.readme import lines_for
from tests.clients.terminal import start_typed, wait_until_quiet

RUN_SECONDS = 120
LEAVE_SECONDS = 15
CONFIRM_SECONDS = 2


class Desk:
    """Runs `agent` against the daemon at `port`, as the README says."""

    def __init__(self, agent: Agent, folder: Path, port: int) -> None:
        self.agent = agent
        self.home = folder / "home"
        self.project = folder / "project"
        self._executable = str(agent.command())
        self._lines = lines_for(agent.heading, port)
        self._output = folder / "output.txt"
        for made in (self.home, self.project):
            made.mkdir(parents=True)
        self._write_files()
        self._begin_repository()
        if agent.settle is not None:
            agent.settle(self.home, self.project)
        for command in self._lines.before:
            self._finish(self._start(command[1:]))

    def run(self, task: str, *, is_resumed: bool = False) -> str:
        """The agent's output once it ended by itself, without an error."""
        process = self._begin(task, is_resumed)
        if self._is_typed(is_resumed):
            return self._finish_typed(process)
        return self._finish(process)

    @contextmanager
    def running(self, task: str, *, is_resumed: bool = False) -> Iterator[None]:
        """The agent at work on `task`, and interrupted at the end, as by Ctrl-C."""
        process = self._begin(task, is_resumed)
        try:
            yield
            self._interrupt(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _interrupt(self, process: subprocess.Popen[bytes]) -> None:
        """Some want it said twice."""
        for seconds in (CONFIRM_SECONDS, LEAVE_SECONDS):
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            return
        raise AssertionError(f"it does not leave: {self.said()}")

    def said(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")[-4000:]

    def _begin(self, task: str, is_resumed: bool) -> subprocess.Popen[bytes]:
        words = self._words(task, is_resumed)
        if not self._is_typed(is_resumed):
            return self._start(words)
        command = [self._executable, *words]
        ready = self.agent.typed_when
        return start_typed(command, self.project, self._environment(), self._output, ready, task)

    def _options(self, is_resumed: bool) -> tuple[str, ...]:
        return self.agent.resumed if is_resumed else self.agent.arguments

    def _is_typed(self, is_resumed: bool) -> bool:
        return TASK not in self._options(is_resumed)

    def _words(self, task: str, is_resumed: bool) -> list[str]:
        values = {TASK: task}
        if is_resumed and self.agent.last_session is not None:
            values[SESSION] = self.agent.last_session(self.home, self.project)
        options = [values.get(word, word) for word in self._options(is_resumed)]
        return self.agent.compose(self._lines.command[1:], options)

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        with self._output.open("wb") as output:
            return subprocess.Popen(
                [self._executable, *words],
                cwd=self.project,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _finish(self, process: subprocess.Popen[bytes]) -> str:
        try:
            code = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"it does not end: {self.said()}") from None
        assert code == 0, f"it ended with {code}: {self.said()}"
        return self.said()

    def _finish_typed(self, process: subprocess.Popen[bytes]) -> str:
        """It goes on waiting, and is told to leave."""
        try:
            wait_until_quiet(self._output, RUN_SECONDS)
            self._interrupt(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return self.said()

    def _environment(self) -> dict[str, str]:
        """Nothing of the tests' own but the path: no keys, no proxies, no configuration."""
        agent = self.agent
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            **{name: agent.edit(value) for name, value in self._lines.environment.items()},
            **agent.environment,
        }

    def _write_files(self) -> None:
        for written, text in self._lines.files.items():
            inside = written.startswith("~/")
            path = (self.home if inside else self.project) / written.removeprefix("~/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.agent.edit(text), encoding="utf-8")

    def _begin_repository(self) -> None:
        """Agents look at the repository that they work in, and one keeps its sessions there."""
        author = "[user]\n\tname = somebody\n\temail = somebody@example.com\n"
        (self.home / ".gitconfig").write_text(author, encoding="utf-8")
        for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "begin")):
            subprocess.run(["git", *words], cwd=self.project, env=self._environment(), check=True)
