"""The daemon as a service: what launchd says and what the daemon answers, put together."""

import dataclasses
import math
from pathlib import Path

import pytest

from daemon import __version__
from daemon.errors import CommandFailed, NotRunning
from daemon.service import Service, Waiting, purged
from daemon.starts import Starts
from daemon.status import DaemonStatus, EngineStatus, ModelStatus
from launchd.agent import Agent, Change
from launchd.errors import ServiceError
from launchd.launchctl import Launchctl
from launchd.plist import AgentSpec
from tests.launchd.fake_launchctl import FIRST_PID, LABEL, UID, FakeLaunchctl

SETTINGS = "digest of settings"


def status_of(pid: int, **changes) -> DaemonStatus:
    engine = EngineStatus(ModelStatus("ready"))
    made = DaemonStatus(__version__, "i", pid, 8642, 1.0, engine, SETTINGS)
    return dataclasses.replace(made, **changes)


class Desk:
    """A Mac on which launchd's agent is a daemon that answers some time after its start."""

    def __init__(self, home: Path) -> None:
        self.now = 0.0
        self.launchd = FakeLaunchctl(started=self._started)
        self.answers: DaemonStatus | None = None
        self.answers_from = 0.0
        self.hangs = False
        self.refuses_with = ""
        self.ends_at = math.inf
        self.starts = Starts(home / "starts.json", clock=self._clock)
        self.agent = Agent(LABEL, home / "agents", Launchctl(self.launchd, UID, self._sleep))
        waiting = Waiting(self._sleep, self._clock)
        self.service = Service(self.agent, self, self.starts, waiting)
        self.log = home / "log"
        self.changes: dict = {}

    def install(self, settings: str = SETTINGS, port: int = 8642):
        spec = AgentSpec(LABEL, ("/opt/bin/mlxd", "serve", str(port)), self.log)
        return self.service.install(spec, settings)

    def status(self) -> DaemonStatus:
        if self.answers is None or self.now < self.answers_from:
            raise NotRunning("Nothing listens")
        return self.answers

    def stop(self) -> None:
        if self.hangs:
            raise CommandFailed("it does not answer")
        self.answers = None
        self.launchd.ends(0)

    def _started(self, pid: int) -> None:
        if pid:
            self.answers = status_of(pid, **self.changes)
            self.answers_from = self.now + 1.0
        elif self.refuses_with:
            self.starts.refused(self.refuses_with)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.ends_at and self.answers is not None:
            self.stop()
            self.starts.refused(self.refuses_with)

    def _clock(self) -> float:
        return self.now


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_an_installation_waits_until_the_daemon_answers(desk):
    change, status = desk.install()
    assert (change, status.pid) == (Change.INSTALLED, FIRST_PID)
    assert desk.now >= 1.0


def test_installing_again_changes_nothing_and_restarts_nothing(desk):
    desk.install()
    change, status = desk.install()
    assert (change, status.pid) == (Change.NONE, FIRST_PID)


@pytest.mark.parametrize("renewed", [{"settings": "other settings"}, {"port": 9}])
def test_changed_settings_install_it_anew(desk, renewed):
    desk.install()
    desk.changes = {"settings": renewed.get("settings", SETTINGS)}
    change, status = desk.install(**renewed)
    assert (change, status.pid) == (Change.RENEWED, FIRST_PID + 1)


def test_a_port_that_changed_in_the_settings_file_installs_it_anew(desk):
    desk.install()
    desk.answers = None  # not on the port that the settings name now
    assert desk.install()[1].pid == FIRST_PID + 1


def test_a_daemon_of_an_older_version_is_replaced(desk):
    desk.changes = {"version": "0.0.1"}
    desk.install()
    desk.changes = {}
    assert desk.install()[0] is Change.RENEWED


def test_a_daemon_in_the_foreground_has_to_end_first(desk):
    desk.answers = status_of(7)
    with pytest.raises(CommandFailed, match="process 7"):
        desk.install()
    assert desk.launchd.done() == []


def test_a_start_that_is_refused_is_told_at_once_and_in_its_words(desk):
    desk.starts.refused("an older story")
    desk.launchd.exits_at_once, desk.refuses_with = 0, "Port 8642 is taken"
    with pytest.raises(CommandFailed, match="cannot run: Port 8642 is taken"):
        desk.install()
    assert desk.now < 5


def test_a_model_that_turns_out_to_be_missing_is_told_too(desk):
    desk.changes = {"engine": EngineStatus(ModelStatus("loading"))}
    desk.ends_at, desk.refuses_with = 3.0, "There is no model `nowhere`"
    with pytest.raises(CommandFailed, match="no model `nowhere`"):
        desk.install()


def test_a_model_that_takes_long_to_load_is_not_waited_for(desk):
    desk.changes = {"engine": EngineStatus(ModelStatus("loading"))}
    assert desk.install()[1].engine.model.state == "loading"
    assert desk.now < 30


def test_a_daemon_that_never_answers_is_an_error_with_its_exit_code(desk):
    desk.launchd.exits_at_once = 1
    with pytest.raises(NotRunning, match="last exit code was 1"):
        desk.install()


def test_a_stop_asks_the_daemon_and_leaves_the_service_installed(desk):
    desk.install()
    desk.launchd.calls.clear()
    assert desk.service.stop()
    assert desk.launchd.done() == []
    assert desk.agent.state().is_loaded
    assert desk.agent.state().last_exit == 0
    assert not desk.service.stop()


def test_a_daemon_that_hangs_is_ended_by_launchd(desk):
    desk.install()
    desk.hangs = True
    assert desk.service.stop()
    assert desk.launchd.jobs == {}
    assert desk.service.start().pid == FIRST_PID + 1


@pytest.mark.parametrize("end", [(1, ""), (None, "Killed: 9")])
def test_a_crashed_one_that_launchd_would_start_again_stays_stopped(desk, end):
    desk.install()
    desk.answers = None
    desk.launchd.ends(*end)
    desk.service.stop()
    assert desk.launchd.jobs == {}


def test_a_stop_does_not_ask_a_daemon_that_is_not_the_service(desk):
    desk.install()
    desk.launchd.ends(0)
    desk.answers = status_of(7)
    assert not desk.service.stop()
    assert desk.answers.pid == 7


def test_start_and_restart_come_back_with_a_daemon_that_answers(desk):
    desk.install()
    desk.service.stop()
    assert desk.service.start().pid == FIRST_PID + 1
    assert desk.service.start().pid == FIRST_PID + 1
    assert desk.service.restart().pid == FIRST_PID + 2
    assert desk.agent.state().last_exit == 0  # it was asked, not killed


@pytest.mark.parametrize("verb", ["start", "stop", "restart"])
def test_without_an_installation_there_is_a_hint(desk, verb):
    with pytest.raises(CommandFailed, match=r"mlxd install.*mlxd serve"):
        getattr(desk.service, verb)()


def test_uninstalling_stops_it_cleanly_and_removes_it_and_twice_is_no_error(desk):
    desk.install()
    assert desk.service.uninstall()
    assert desk.answers is None  # it was asked
    assert desk.launchd.jobs == {}
    assert not desk.agent.is_installed
    assert not desk.service.uninstall()


def test_a_purge_deletes_what_is_there_but_not_under_a_running_daemon(desk, tmp_path):
    folder, missing = tmp_path / "state", tmp_path / "none"
    inner = folder / "log"
    inner.mkdir(parents=True)
    desk.answers = status_of(7)
    with pytest.raises(CommandFailed, match="process 7"):
        purged([folder, missing, inner], inner, desk)
    assert inner.is_dir()
    desk.answers = None
    assert purged([folder, missing, inner], inner, desk) == [folder]
    assert not folder.exists()


def test_a_purge_deletes_what_was_read_elsewhere_and_nothing_of_others_there(desk, tmp_path):
    desk.answers = None
    disk = tmp_path / "disk"
    model = disk / ("0" * 40)
    model.mkdir(parents=True, mode=0o700)
    ours = model / f"{'1' * 40}.block.safetensors"
    for file in (ours, disk / "holiday.jpg"):
        file.touch()
    assert purged([], disk, desk) == [disk]
    assert not ours.exists()
    assert (disk / "holiday.jpg").exists()


def test_what_launchd_refuses_comes_through(desk):
    desk.launchd.has_session = False
    with pytest.raises(ServiceError, match="log in at the Mac"):
        desk.install()
