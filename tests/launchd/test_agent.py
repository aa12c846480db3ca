"""An agent's life by a recorded `launchctl`: whatever was there, it ends as it has to be."""

import plistlib
from dataclasses import replace
from pathlib import Path

import pytest

from launchd.agent import Agent, Change
from launchd.errors import NoGuiSession, NotPermitted, ServiceError
from launchd.launchctl import AgentState, Launchctl, parsed_state
from launchd.plist import AgentSpec
from launchd.tools import run_tool
from tests.launchd.fake_launchctl import FIRST_PID, LABEL, UID, FakeLaunchctl, Job


class Mac:
    """An account's folder, launchd, and the time that passes while something is waited for."""

    def __init__(self, home: Path, **launchd) -> None:
        self.launchd = FakeLaunchctl(**launchd)
        self.slept = 0.0
        self.folder = home / "Library" / "LaunchAgents"
        self.agent = Agent(LABEL, self.folder, Launchctl(self.launchd, UID, self._sleep))
        self.log = home / "Library" / "Logs" / "mlxd" / "launchd.log"

    def _sleep(self, seconds: float) -> None:
        self.slept += seconds

    def spec(self, *arguments: str) -> AgentSpec:
        return AgentSpec(LABEL, ("/opt/bin/mlxd", "serve", *arguments), self.log)


@pytest.fixture
def mac(tmp_path):
    return Mac(tmp_path)


def test_an_agent_that_was_never_installed_is_written_made_known_and_started(mac):
    assert mac.agent.install(mac.spec()) is Change.INSTALLED
    assert mac.launchd.done() == ["bootout", "enable", "bootstrap", "kickstart"]
    assert plistlib.loads(mac.agent.plist.read_bytes())["Label"] == LABEL
    assert mac.agent.plist.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in mac.folder.iterdir()] == [f"{LABEL}.plist"]
    assert mac.log.parent.is_dir()
    assert mac.agent.state() == AgentState(True, FIRST_PID, None, "", str(mac.agent.plist), 1)


def test_installing_again_leaves_what_runs_alone(mac):
    mac.agent.install(mac.spec())
    pid = mac.agent.state().pid
    mac.launchd.calls.clear()
    assert mac.agent.install(mac.spec()) is Change.NONE
    assert mac.launchd.done() == []
    assert mac.agent.state().pid == pid


def test_a_changed_setting_installs_anew(mac):
    mac.agent.install(mac.spec())
    pid = mac.agent.state().pid
    assert mac.agent.install(mac.spec("--port", "9")) is Change.RENEWED
    assert mac.agent.state().pid != pid
    arguments = plistlib.loads(mac.agent.plist.read_bytes())["ProgramArguments"]
    assert arguments == ["/opt/bin/mlxd", "serve", "--port", "9"]


def test_one_that_runs_with_old_settings_is_started_anew(mac):
    mac.agent.install(mac.spec())
    pid = mac.agent.state().pid
    assert mac.agent.install(mac.spec(), must_renew=True) is Change.RENEWED
    assert mac.agent.state().pid != pid


@pytest.mark.parametrize(
    ("end", "has_crashed"), [((0, ""), False), ((1, ""), True), ((None, "Killed: 9"), True)]
)
def test_one_that_is_installed_and_stopped_or_crashed_is_started(mac, end, has_crashed):
    mac.agent.install(mac.spec())
    assert not mac.agent.state().has_crashed
    mac.launchd.ends(*end)
    found = mac.agent.state()
    assert not found.is_running
    assert (found.last_exit, found.killed_by) == end
    assert found.has_crashed is has_crashed
    assert mac.agent.install(mac.spec()) is Change.STARTED
    assert mac.agent.state().is_running


def test_a_disabled_agent_is_enabled(mac):
    mac.launchd.is_disabled = True
    assert mac.agent.install(mac.spec()) is Change.INSTALLED
    assert mac.agent.state().is_running


def test_a_slow_end_is_waited_for_before_it_is_made_known_again(mac):
    mac.agent.install(mac.spec())
    mac.launchd.bootouts, mac.launchd.teardown = [36], 3
    assert mac.agent.install(mac.spec("--port", "9")) is Change.RENEWED
    assert mac.slept == 2.0
    assert mac.agent.state().is_running


def test_an_end_that_never_comes_is_an_error(mac):
    mac.agent.install(mac.spec())
    mac.launchd.bootouts, mac.launchd.teardown = [36], 10_000
    with pytest.raises(ServiceError, match="does not let go"):
        mac.agent.uninstall()
    assert mac.slept < 120


@pytest.mark.parametrize("code", [5, 37])
def test_a_registration_that_is_still_going_away_is_tried_again(mac, code):
    mac.launchd.bootstraps = [code, code]
    assert mac.agent.install(mac.spec()) is Change.INSTALLED
    assert mac.agent.state().is_running
    assert mac.slept == 2.0


def test_what_launchd_refuses_in_the_end_is_told_in_its_words(mac):
    mac.launchd.bootstraps = [5] * 9
    with pytest.raises(ServiceError, match=r"bootstrap failed with 5: .*Input/output error$"):
        mac.agent.install(mac.spec())


def test_one_that_somebody_else_made_known_meanwhile_counts(mac):
    mac.launchd.bootouts = [5]  # says so although it is not there
    mac.launchd.bootstraps = [37]
    assert mac.agent.install(mac.spec()) is Change.INSTALLED


def test_without_a_session_at_the_screen_it_says_to_log_in(mac):
    mac.launchd.has_session = False
    with pytest.raises(NoGuiSession, match="log in at the Mac"):
        mac.agent.install(mac.spec())
    assert not mac.agent.plist.exists()


def test_an_agent_of_another_account_is_left_alone(mac):
    mac.launchd.is_permitted = False
    for step in (lambda: mac.agent.install(mac.spec()), mac.agent.uninstall, mac.agent.end):
        with pytest.raises(NotPermitted, match="another account"):
            step()
    assert not mac.agent.plist.exists()


def test_the_label_of_another_plist_is_not_taken_over(mac, tmp_path):
    other = tmp_path / "other.plist"
    other.write_text("")
    mac.launchd.jobs[LABEL] = Job(str(other), pid=7)
    with pytest.raises(ServiceError, match=str(other)):
        mac.agent.install(mac.spec())
    assert mac.launchd.jobs[LABEL].pid == 7


def test_a_registration_whose_plist_is_gone_is_replaced(mac, tmp_path):
    mac.launchd.jobs[LABEL] = Job(str(tmp_path / "gone.plist"), pid=7)
    assert mac.agent.install(mac.spec()) is Change.INSTALLED
    assert mac.launchd.jobs[LABEL].plist == str(mac.agent.plist)


def test_a_folder_that_belongs_to_root_is_said_so(mac, monkeypatch):
    def refuse(*arguments, **named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(NotPermitted, match="sudo chown"):
        mac.agent.install(mac.spec())
    assert mac.launchd.jobs == {}


def test_uninstalling_ends_it_and_takes_the_plist_back_and_twice_is_no_error(mac):
    mac.agent.install(mac.spec())
    assert mac.agent.uninstall()
    assert mac.launchd.jobs == {}
    assert not mac.agent.plist.exists()
    assert not mac.agent.uninstall()


def test_a_plist_that_launchd_never_heard_of_is_removed_too(mac):
    mac.agent.install(mac.spec())
    mac.launchd.jobs.clear()
    assert mac.agent.uninstall()
    assert not mac.agent.plist.exists()


def test_start_makes_known_what_launchd_forgot_and_leaves_what_runs(mac):
    mac.agent.install(mac.spec())
    mac.agent.end()
    assert mac.agent.is_installed
    mac.agent.start()
    pid = mac.agent.state().pid
    mac.agent.start()
    assert mac.agent.state().pid == pid is not None


def test_an_exit_code_with_its_name_is_read_as_a_number():
    printed = "gui/501/x = {\n\tstate = spawn scheduled\n\tlast exit code = 78: EX_CONFIG\n}\n"
    assert parsed_state(printed).last_exit == 78
    assert parsed_state(printed).has_crashed


def test_an_installed_agent_tells_the_environment_it_was_given(mac):
    assert mac.agent.environment() is None
    mac.agent.install(replace(mac.spec(), environment={"MLXD_PORT": "9"}))
    assert mac.agent.environment() == {"MLXD_PORT": "9"}
    mac.agent.plist.write_bytes(b"<plist><dict>")
    assert mac.agent.environment() == {}


def test_start_without_an_installation_names_the_command(mac):
    with pytest.raises(ServiceError, match="mlxd install"):
        mac.agent.start()


def test_a_tool_that_is_not_there_or_fails_is_an_exit_code_with_words(tmp_path):
    missing = run_tool([str(tmp_path / "launchctl"), "print"])
    assert (missing.returncode, "No such file" in missing.stderr) == (127, True)
    failed = run_tool(["/bin/sh", "-c", "echo no >&2; exit 3"])
    assert (failed.returncode, failed.stderr) == (3, "no\n")
