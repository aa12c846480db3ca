"""`mlxd cache --disk` and its like, through a daemon that keeps something there and without one."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli import ExitCode
from tests.e2e.processes import Daemon, free_port, running
from tests.e2e.test_commands import Shell, mlxd
from tests.state_files import flip_a_bit, state_files

TEXT = "What was read stays read. " * 40
LIMITS = {"disk_cache_idle_seconds": 0.05, "disk_cache_free_bytes": 0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An account of its own: the daemon's token is made there, and read there."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("COLUMNS", "80")
        yield home


@pytest.fixture(scope="module")
def folder(home: Path) -> Path:
    """Where the daemon keeps what it read."""
    return home / "read"


@pytest.fixture(scope="module")
def living(home: Path, folder: Path) -> Iterator[Daemon]:
    with running(has_token=True, disk=str(folder), settings=LIMITS) as daemon:
        yield daemon


@pytest.fixture
def daemon(living: Daemon, folder: Path) -> Daemon:
    """The one daemon, which read something, and has it on disk, whatever was cleared before."""
    assert living.chat(TEXT).status_code == 200
    living.wait_until(lambda engine: state_files(folder) and not engine["disk"]["pending_bytes"])
    return living


@pytest.fixture
def left(daemon: Daemon, folder: Path, tmp_path: Path) -> Path:
    """A folder that no daemon uses, as one left it."""
    return Path(shutil.copytree(folder, tmp_path / "left"))


@pytest.fixture(scope="module")
def keeps_nothing(home: Path) -> Iterator[Daemon]:
    """A daemon with a folder, and no bytes for it."""
    off = {**LIMITS, "disk_cache_bytes": 0}
    with running(has_token=True, disk=str(home / "never"), settings=off) as daemon:
        yield daemon
        daemon.stop()
    assert not (home / "never").exists()


def test_a_daemon_tells_what_is_on_disk_and_finds_what_is_wrong_there(
    daemon: Daemon, folder: Path
) -> None:
    at = Shell(daemon)
    listed = at.json("cache", "--disk")
    assert listed["disk"] == daemon.engine()["disk"]
    assert listed["disk"]["files"] == len(state_files(folder)) == listed["models"][0]["files"]
    assert listed["disk"]["folder"] == str(folder)
    text = at.text("cache", "--disk")
    assert listed["models"][0]["identity"][:12] in text
    assert f"in {listed['disk']['files']} file" in text
    assert at.text("cache", "check", "--disk").startswith("Sound: every file is")
    flip_a_bit(state_files(folder)[0])
    found = at.run("cache", "check", "--disk")
    assert found.returncode == ExitCode.FAILED
    assert "Not sound: 1 file of" in found.stdout
    assert at.text("cache", "check", "--disk").startswith("Sound")
    assert daemon.engine()["disk"]["bad_files"] == 1


def test_what_is_cleared_on_disk_is_gone_from_memory_too_and_stays_away(
    daemon: Daemon, folder: Path
) -> None:
    at = Shell(daemon)
    assert at.json("cache")["cache"]["tokens"]
    assert at.text("cache", "clear", "--disk") == "Cleared: 0 files are left on disk.\n"
    assert state_files(folder) == []
    assert at.json("cache")["cache"]["tokens"] == 0
    daemon.chat(TEXT)
    last = daemon.http.get("/mlxd/requests").json()["data"][-1]
    assert (last["reused"], last["from_disk"]) == (0, 0)


def test_to_clear_or_check_what_is_on_disk_takes_the_token(daemon: Daemon, folder: Path) -> None:
    for action in ("clear", "check"):
        assert daemon.http.post(f"/mlxd/cache/disk/{action}").status_code == 401
    assert state_files(folder)


def test_status_says_that_an_idle_model_is_on_disk(daemon: Daemon) -> None:
    daemon.saved()
    text = " ".join(Shell(daemon).text("status").split())
    assert ", on disk, unloaded in " in text
    assert "written today of 50.0 GB at most" in text


def test_without_a_daemon_the_folder_is_listed_checked_and_cleared_all_the_same(left: Path) -> None:
    where = ("--disk-cache-folder", str(left), "--port", str(free_port()))
    files = len(state_files(left))
    listed = json.loads(mlxd("cache", "--disk", "--json", *where).stdout)
    assert listed["disk"]["files"] == files
    assert "that no daemon uses now" in mlxd("cache", "--disk", *where).stdout
    assert mlxd("cache", "check", "--disk", *where).returncode == ExitCode.READY
    flip_a_bit(state_files(left)[0])
    found = mlxd("cache", "check", "--disk", "--json", *where)
    assert found.returncode == ExitCode.FAILED
    assert len(json.loads(found.stdout)["bad"]) >= 1
    assert mlxd("cache", "clear", "--disk", *where).returncode == ExitCode.READY
    assert state_files(left) == []


def test_a_daemon_that_keeps_nothing_there_does_not_stand_before_what_others_left(
    keeps_nothing: Daemon, left: Path
) -> None:
    at = Shell(keeps_nothing)
    assert "gone when the daemon ends" in " ".join(at.text("status").split())
    done = at.run("cache", "clear", "--disk", "--disk-cache-folder", str(left))
    assert (done.returncode, state_files(left)) == (ExitCode.READY, [])


def test_with_no_bytes_for_it_nothing_is_made_on_the_disk(
    keeps_nothing: Daemon, home: Path
) -> None:
    assert keeps_nothing.chat(TEXT).status_code == 200
    assert not keeps_nothing.engine()["disk"]["is_on"]
    assert keeps_nothing.http.get("/mlxd/cache/disk").json()["models"] == []
    assert not (home / "never").exists()


def test_without_anything_on_disk_and_without_a_daemon_that_is_said(home: Path) -> None:
    nowhere = ("--disk-cache-folder", str(home / "nowhere"), "--port", str(free_port()))
    done = mlxd("cache", "--disk", *nowhere)
    assert done.returncode == ExitCode.READY
    assert "Nothing is kept on disk." in done.stdout
    assert not (home / "nowhere").exists()
