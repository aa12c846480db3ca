"""The plist: what launchd reads in it, by the list of keys that launchd.plist(5) has."""

import plistlib
from dataclasses import replace
from pathlib import Path

import pytest

from launchd import plist
from launchd.plist import AgentSpec, rendered

LAUNCHD_KEYS = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "LimitLoadToSessionType": str,
    "SoftResourceLimits": dict,
    "HardResourceLimits": dict,
    "Umask": int,
    "WorkingDirectory": str,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}
"""Those of launchd.plist(5) that an agent of ours has, with their types."""

SPEC = AgentSpec(
    "dev.mlxd.daemon",
    ("/Users/me/.local/bin/mlxd", "serve", "--supervised"),
    Path("/Users/me/Library/Logs/mlxd/launchd.log"),
    {"PATH": "/usr/bin:/bin", "HF_HOME": "/Volumes/models & more/hf"},
    shutdown_seconds=12.5,
)


def read_back(spec: AgentSpec = SPEC):
    return plistlib.loads(rendered(spec))


def test_every_key_is_one_that_launchd_knows_and_has_its_type():
    found = read_back()
    assert {key: type(value) for key, value in found.items()} == LAUNCHD_KEYS


def test_what_was_said_is_what_is_read_back():
    found = read_back()
    assert found["Label"] == SPEC.label
    assert found["ProgramArguments"] == list(SPEC.program)
    assert found["EnvironmentVariables"] == SPEC.environment
    assert found["StandardErrorPath"] == found["StandardOutPath"] == str(SPEC.log)


def test_it_starts_at_login_and_again_after_a_crash_only_and_not_at_once():
    found = read_back()
    assert found["RunAtLoad"] is True
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["ThrottleInterval"] >= 10
    assert found["LimitLoadToSessionType"] == "Aqua"
    assert found["ProcessType"] == "Interactive"


def test_one_that_does_not_restart_starts_at_login_only():
    found = read_back(replace(SPEC, restarts=False))
    assert found["RunAtLoad"] is True
    assert found["KeepAlive"] is False


def test_launchd_waits_longer_than_the_daemon_takes_to_end():
    assert read_back()["ExitTimeOut"] > SPEC.shutdown_seconds + 5


def test_it_may_open_more_files_than_launchd_gives_by_default():
    found = read_back()
    assert found["SoftResourceLimits"]["NumberOfFiles"] >= 4096
    assert found["HardResourceLimits"]["NumberOfFiles"] >= 4096


def test_relative_paths_are_our_own_mistake():
    for wrong in (
        AgentSpec(SPEC.label, ("mlxd",), SPEC.log),
        AgentSpec(SPEC.label, SPEC.program, Path("launchd.log")),
    ):
        with pytest.raises(AssertionError):
            rendered(wrong)


def test_the_same_spec_is_the_same_file():
    reversed_environment = dict(reversed(SPEC.environment.items()))
    assert rendered(replace(SPEC, environment=reversed_environment)) == rendered(SPEC)


def test_a_file_that_cannot_be_written_whole_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "agents" / "a.plist"
    plist.write(path, b"before")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        plist.write(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_others_could_write_becomes_one_that_only_its_owner_can(tmp_path):
    path = tmp_path / "a.plist"
    path.write_bytes(b"before")
    path.chmod(0o666)
    plist.write(path, b"after")
    assert path.stat().st_mode & 0o777 == 0o644
    assert plist.read(path) == b"after"
    assert plist.read(tmp_path / "none") is None


def test_the_program_of_a_plist_is_its_first_word_and_of_anything_else_nothing():
    assert plist.program_of(rendered(SPEC)) == SPEC.program[0]
    for other in (b"", b"no plist", plistlib.dumps({}), plistlib.dumps({"ProgramArguments": []})):
        assert plist.program_of(other) == ""
