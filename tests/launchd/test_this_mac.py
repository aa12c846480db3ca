"""The parts put together for one account: what it would install, and with which settings."""

import os
import plistlib
from pathlib import Path

import pytest

from daemon.cli.this_mac import ThisMac, new_spec
from daemon.errors import CommandFailed
from daemon.service import STOP_SECONDS
from launchd.plist import rendered
from tests.launchd.fake_launchctl import LABEL, UID, FakeLaunchctl


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_", "HF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_new_service_has_this_shells_settings_and_absolute_paths_only(home, monkeypatch):
    monkeypatch.setenv("MLXD_PORT", "9001")
    monkeypatch.setenv("HF_HOME", "models")
    found = plistlib.loads(rendered(new_spec()))
    words, given = found["ProgramArguments"], found["EnvironmentVariables"]
    assert Path(words[0]).is_absolute()
    assert words[-2:] == ["serve", "--supervised"]
    assert given["MLXD_PORT"] == "9001"
    assert given["HF_HUB_CACHE"] == str(home / "models" / "hub")
    assert found["StandardErrorPath"].startswith(str(home))
    assert found["ExitTimeOut"] > 10


def test_launchd_waits_for_running_requests_and_for_what_is_written(home, monkeypatch):
    before = plistlib.loads(rendered(new_spec()))["ExitTimeOut"]
    monkeypatch.setenv("MLXD_SHUTDOWN_GRACE_SECONDS", "50")
    monkeypatch.setenv("MLXD_SHUTDOWN_SAVE_SECONDS", "60")
    found = plistlib.loads(rendered(new_spec()))["ExitTimeOut"]
    assert before < 110 < found < STOP_SECONDS


def test_files_are_named_so_that_they_are_found_from_anywhere(home, monkeypatch):
    (home / "models" / "mine").mkdir(parents=True)
    (home / "my.toml").touch()
    monkeypatch.chdir(home)
    monkeypatch.setenv("MLXD_MODEL", "models/mine")
    monkeypatch.setenv("MLXD_CONFIG", "my.toml")
    given = new_spec().environment
    assert given["MLXD_MODEL"] == str(home / "models" / "mine")
    assert given["MLXD_CONFIG"] == str(home / "my.toml")
    monkeypatch.setenv("MLXD_MODEL", "mlx-community/Qwen3-8B-4bit")
    assert new_spec().environment["MLXD_MODEL"] == "mlx-community/Qwen3-8B-4bit"


def test_an_installed_service_is_asked_where_it_listens_not_where_this_shell_would(
    home, monkeypatch
):
    mac = ThisMac(FakeLaunchctl(), "Darwin", UID)
    monkeypatch.setenv("MLXD_PORT", "9001")
    mac.agent.install(new_spec())
    assert mac.agent.plist == home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    monkeypatch.setenv("MLXD_PORT", "9002")
    assert mac.settings().port == 9001
    mac.agent.uninstall()
    assert mac.settings().port == 9002


def test_the_settings_file_counts_for_the_service_and_the_menu_bar_is_another_agent(
    home, monkeypatch
):
    file = home / "my.toml"
    file.write_text("port = 9003\n")
    monkeypatch.setenv("MLXD_CONFIG", str(file))
    mac = ThisMac(FakeLaunchctl(), "Darwin", UID)
    mac.agent.install(new_spec())
    mac.install_menubar()
    monkeypatch.delenv("MLXD_CONFIG")
    assert mac.settings().port == 9003
    found = plistlib.loads(mac.menubar.plist.read_bytes())
    assert found["ProgramArguments"][-1] == "menubar"
    assert found["KeepAlive"] is False
    pid = mac.menubar.state().pid
    mac.restart_menubar()
    assert mac.menubar.state().pid != pid
    assert mac.menubar.plist != mac.agent.plist


@pytest.mark.parametrize(
    ("system", "uid", "words"), [("Linux", UID, "mlxd serve"), ("Darwin", 0, "without sudo")]
)
def test_there_is_no_service_elsewhere_or_for_root(system, uid, words):
    with pytest.raises(CommandFailed, match=words):
        ThisMac(FakeLaunchctl(), system, uid)
