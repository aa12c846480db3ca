"""The service from its installation to its end, with a real daemon that a fake launchd runs.

Nothing but what the plist says gets to the daemon: its words, its environment, its folder.
"""

import os
import plistlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemon.cli.this_mac import ThisMac
from daemon.client import Client
from launchd.agent import Change
from tests.e2e.processes import BOUND_SECONDS, ROOT, START_SECONDS, free_port
from tests.launchd.fake_launchctl import LABEL, UID, FakeLaunchctl, Job


@dataclass
class RunningLaunchctl(FakeLaunchctl):
    """Starts what an agent's plist says, as launchd would, but does not start it again."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, job: Job) -> None:
        said = plistlib.loads(Path(job.plist).read_bytes())
        bare = {"HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT)}
        with Path(said["StandardErrorPath"]).open("ab") as log:
            process = subprocess.Popen(
                said["ProgramArguments"],
                env=bare | said["EnvironmentVariables"],
                cwd=said["WorkingDirectory"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        job.pid = process.pid

    def look(self) -> None:
        """Notice what has ended."""
        for process in self.processes:
            if LABEL in self.jobs and self.jobs[LABEL].pid == process.pid:
                code = process.poll()
                if code is not None:
                    self.ends(code if code >= 0 else None, "" if code >= 0 else f"Signal: {-code}")

    def __call__(self, arguments):
        self.look()
        if arguments[1] == "bootout" and LABEL in self.jobs:
            self.stop_all()
        return super().__call__(arguments)

    def _spawn(self, label: str) -> None:
        self.jobs[label].runs += 1
        self.start(self.jobs[label])

    def stop_all(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(BOUND_SECONDS)


@contextmanager
def launchd() -> Iterator[RunningLaunchctl]:
    made = RunningLaunchctl()
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_", "HF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def path_of_its_model(daemon: Client) -> str:
    """Known once it is loaded, which a busy machine may take longer for than an installation
    waits."""
    deadline = time.monotonic() + START_SECONDS
    while (model := daemon.status().engine.model).state == "loading":
        assert time.monotonic() < deadline, "the model is not loaded"
        time.sleep(0.05)
    return model.path


def test_an_installed_service_finds_its_model_ends_when_asked_and_goes_without_a_trace(
    home, monkeypatch
) -> None:
    from mlx_backend.tiny_models import write_folder

    monkeypatch.setenv("MLXD_PORT", str(free_port()))
    monkeypatch.setenv("MLXD_MODEL", str(write_folder("tiny-full", home / "model")))
    with launchd() as fake:
        mac = ThisMac(fake, "Darwin", UID)
        change, first = mac.install()
        assert change is Change.INSTALLED
        assert path_of_its_model(mac.client()) == str(home / "model")
        change, again = mac.install()
        assert (change, again.instance) == (Change.NONE, first.instance)
        assert mac.service().stop()
        assert fake.jobs[LABEL].last_exit == 0
        assert fake.done() == ["bootout", "enable", "bootstrap", "kickstart"]  # it was asked
        assert mac.service().uninstall()
        assert not mac.agent.is_installed
        logs = [path for path in home.rglob("launchd.log") if path.stat().st_size]
        assert logs == []  # what the daemon says is in its own log
