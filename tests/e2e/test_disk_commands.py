"""`mlxd cache --disk` and its like, through a daemon that keeps something there and without one."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon.cli import ExitCode
from tests.e2e.processes import Daemon, free_port, running
from tests.e2e.test_commands import Shell, mlxd

TEXT = "What was read stays read. " * 40
LIMITS = {"disk_cache_idle_seconds": 0.05, "disk_cache_free_bytes": 0}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account of its own: the daemon's token is made there, and read there."""
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


@contextmanager
def written(folder: Path) -> Iterator[Daemon]:
    """A daemon that read something, and has it on disk."""
    with running(has_token=True, disk=str(folder), settings=LIMITS) as daemon:
        assert daemon.chat(TEXT).status_code == 200
        daemon.wait_until(
            lambda engine: engine["disk"]["written_files"] and not engine["disk"]["pending_bytes"]
        )
        yield daemon


def states(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_daemon_tells_what_is_on_disk_finds_what_is_wrong_there_and_clears_it(tmp_path) -> None:
    folder = tmp_path / "read"
    with written(folder) as daemon:
        at = Shell(daemon)
        listed = at.json("cache", "--disk")
        assert listed["disk"] == daemon.engine()["disk"]
        assert listed["disk"]["files"] == len(states(folder)) == listed["models"][0]["files"]
        assert listed["disk"]["folder"] == str(folder)
        text = at.text("cache", "--disk")
        assert listed["models"][0]["identity"][:12] in text
        assert f"in {listed['disk']['files']} file" in text
        assert at.text("cache", "check", "--disk").startswith("Sound: every file is")
        damage(states(folder)[0])
        found = at.run("cache", "check", "--disk")
        assert found.returncode == ExitCode.FAILED
        assert "Not sound: 1 file of" in found.stdout
        assert at.text("cache", "check", "--disk").startswith("Sound")
        assert daemon.engine()["disk"]["bad_files"] == 1


def test_what_is_cleared_on_disk_is_gone_from_memory_too_and_stays_away(tmp_path) -> None:
    folder = tmp_path / "read"
    with written(folder) as daemon:
        at = Shell(daemon)
        assert at.json("cache")["cache"]["tokens"]
        assert at.text("cache", "clear", "--disk") == "Cleared: 0 files are left on disk.\n"
        assert states(folder) == []
        assert at.json("cache")["cache"]["tokens"] == 0
        daemon.chat(TEXT)
        last = daemon.http.get("/mlxd/requests").json()["data"][-1]
        assert (last["reused"], last["from_disk"]) == (0, 0)


def test_to_clear_or_check_what_is_on_disk_takes_the_token(tmp_path) -> None:
    folder = tmp_path / "read"
    with written(folder) as daemon:
        for action in ("clear", "check"):
            assert daemon.http.post(f"/mlxd/cache/disk/{action}").status_code == 401
        assert states(folder)


def test_status_says_that_an_idle_model_is_on_disk(tmp_path) -> None:
    with written(tmp_path / "read") as daemon:
        text = " ".join(Shell(daemon).text("status").split())
        assert ", on disk, unloaded in " in text
        assert "written today of 50.0 GB at most" in text


def test_without_a_daemon_the_folder_is_listed_checked_and_cleared_all_the_same(tmp_path) -> None:
    folder = tmp_path / "read"
    with written(folder) as daemon:
        daemon.stop()
    where = ("--disk-cache-folder", str(folder), "--port", str(free_port()))
    files = len(states(folder))
    listed = json.loads(mlxd("cache", "--disk", "--json", *where).stdout)
    assert listed["disk"]["files"] == files
    assert "that no daemon uses now" in mlxd("cache", "--disk", *where).stdout
    assert mlxd("cache", "check", "--disk", *where).returncode == ExitCode.READY
    damage(states(folder)[0])
    found = mlxd("cache", "check", "--disk", "--json", *where)
    assert found.returncode == ExitCode.FAILED
    assert len(json.loads(found.stdout)["bad"]) >= 1
    assert mlxd("cache", "clear", "--disk", *where).returncode == ExitCode.READY
    assert states(folder) == []


def test_a_daemon_that_keeps_nothing_there_does_not_stand_before_what_others_left(tmp_path) -> None:
    folder = tmp_path / "read"
    with written(folder) as daemon:
        daemon.stop()
    with running(has_token=True) as daemon:
        at = Shell(daemon)
        assert "gone when the daemon ends" in " ".join(at.text("status").split())
        done = at.run("cache", "clear", "--disk", "--disk-cache-folder", str(folder))
        assert (done.returncode, states(folder)) == (ExitCode.READY, [])


def test_with_no_bytes_for_it_nothing_is_made_on_the_disk(tmp_path) -> None:
    off = {**LIMITS, "disk_cache_bytes": 0}
    with running(disk=str(tmp_path / "read"), settings=off) as daemon:
        assert daemon.chat(TEXT).status_code == 200
        assert not daemon.engine()["disk"]["is_on"]
        assert daemon.http.get("/mlxd/cache/disk").json()["models"] == []
        daemon.stop()
    assert not (tmp_path / "read").exists()


def test_without_anything_on_disk_and_without_a_daemon_that_is_said(tmp_path) -> None:
    done = mlxd("cache", "--disk", "--port", str(free_port()))
    assert done.returncode == ExitCode.READY
    assert "Nothing is kept on disk." in done.stdout
    assert not list(tmp_path.rglob("read"))
