"""`mlxd doctor`: what it finds on machines of all sorts, and what it exits with."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from daemon import __version__
from daemon.agent_configs import check_agents
from daemon.cli import ExitCode
from daemon.disk_status import DiskStatus
from daemon.doctor import (
    TESTED,
    DiskCacheFacts,
    Finding,
    Machine,
    ModelFacts,
    ServiceFacts,
    Severity,
    check_disk,
    check_disk_cache,
    check_logs,
    check_machine,
    check_model,
    check_packages,
    check_port,
    check_service,
    check_settings,
    check_starts,
    worst,
)
from daemon.starts import Memory
from daemon.status import DaemonStatus, EngineStatus, MachineStatus, ModelStatus
from daemon.views.doctor import doctor_json, summary
from tests.e2e.processes import free_port, running

ROOT = Path(__file__).parent.parent
OK, NOTE, WARNING, PROBLEM = Severity
GB = 10**9
M2 = Machine("Darwin", "arm64", "15.1", "Apple M2")


def status(**changes) -> DaemonStatus:
    model = changes.pop("model", ModelStatus("ready"))
    fields = {"version": __version__, "instance": "a", "pid": 7, "port": 8642}
    return DaemonStatus(uptime_seconds=1.0, engine=EngineStatus(model), **{**fields, **changes})


def one(findings) -> Finding:
    [finding] = findings
    return finding


CASES = [
    (check_machine(M2), OK, "macOS 15.1, Apple M2"),
    (check_machine(Machine("Linux", "x86_64")), NOTE, "CPU"),
    (check_machine(Machine("Darwin", "arm64", "13.6", "Apple M1")), PROBLEM, "too old"),
    (check_machine(Machine("Darwin", "x86_64", "14.0", "Apple M1")), PROBLEM, "This Python"),
    (check_machine(Machine("Darwin", "x86_64", "14.0", "Intel")), PROBLEM, "An Intel Mac"),
    (check_model(ModelFacts("q", 4 * GB, 24 * GB)), OK, "4.0 GB of weights"),
    (check_model(ModelFacts("q", 20 * GB, 24 * GB)), WARNING, "little is left"),
    (check_model(ModelFacts("q", 40 * GB, 24 * GB)), PROBLEM, "40.0 GB of weights, 24.0 GB"),
    (check_model(ModelFacts(error="There is no folder x.")), PROBLEM, "no folder x"),
    (one(check_port(8642, None)), NOTE, "8642 is free"),
    (one(check_port(8642, status())), OK, "process 7"),
    (one(check_port(8642, status(version="0.0.1"))), WARNING, f"this is {__version__}"),
    (one(check_port(8642, None, "Port 8642 does not answer")), PROBLEM, "not answer"),
    (check_service(ServiceFacts()), NOTE, "not installed"),
    (check_service(ServiceFacts(True, True)), OK, "runs"),
    (check_service(ServiceFacts(True, False, 0)), NOTE, "stopped"),
    (check_service(ServiceFacts(True, False, 1)), WARNING, "exit code 1"),
    (check_service(ServiceFacts(True, False, 1, "/gone/mlxd")), PROBLEM, "/gone/mlxd"),
    (check_service(ServiceFacts(error="log in at the Mac")), WARNING, "log in"),
    (one(check_starts(Memory(refusal="Port 1 is taken"))), PROBLEM, "Port 1 is taken"),
    (one(check_starts(Memory(refusal="Port 2 is taken"), True)), NOTE, "Port 2 is taken"),
    (one(check_starts(Memory(crashes=(1.0, 2.0)))), WARNING, "2 crashed"),
    (check_settings("config.toml", None), OK, "defaults"),
    (check_settings("config.toml", 2), OK, "2 settings in config.toml"),
    (check_settings("", None, "config.toml, line 3: prot is no setting"), PROBLEM, "line 3"),
    (check_logs("/logs", 20 * 10**6), OK, "20.0 MB"),
    (check_logs("/logs", 2 * GB), WARNING, "2.0 GB"),
    (check_logs("/logs", 0, "not yours"), WARNING, "not yours"),
    (check_disk("/models", 200 * GB), OK, "200.0 GB"),
    (check_disk("/models", 5 * GB), WARNING, "5.0 GB"),
    (check_disk("/models", 10**8), PROBLEM, "0.1 GB"),
]


@pytest.mark.parametrize(("finding", "severity", "words"), CASES, ids=[c[2] for c in CASES])
def test_each_fact_is_judged_and_what_is_wrong_has_its_remedy(finding, severity, words):
    assert finding.severity is severity
    assert words in finding.words
    if severity > NOTE and "log in" not in words:
        assert finding.fix.endswith(".")


def test_versions_are_compared_with_those_that_were_tested():
    found = check_packages({"mlx": TESTED["mlx"], "mlx-lm": "9.9.9"})
    assert [each.severity for each in found] == [OK, WARNING]
    assert TESTED["mlx-lm"] in found[1].words
    newer = ".".join([*TESTED["mlx"].split(".")[:2], "99"])
    found = check_packages({"mlx": newer})
    assert [each.severity for each in found] == [OK, PROBLEM]


def test_the_tested_versions_are_those_that_the_package_asks_for():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, version in TESTED.items():
        asked = [line for line in wanted if line.split(">=")[0].split("[")[0] == name]
        assert asked
        assert all(f">={version}," in line for line in asked)


def test_what_a_running_daemon_says_of_itself_is_judged_too():
    machine = MachineStatus("critical", 5, is_low_power=True, heat="serious")
    failed = ModelStatus("failed", error="it crashed")
    found = check_port(8642, status(machine=machine, model=failed))
    assert [each.severity for each in found] == [OK, PROBLEM, WARNING, NOTE, NOTE]
    assert "it crashed" in found[1].words


CONFIGS = [
    ("Codex", ".codex/config.toml", 'base_url = "http://127.0.0.1:8642/v1"', OK, "asks this"),
    ("Codex", ".codex/config.toml", 'model = "gpt-5"', NOTE, "does not ask"),
    (
        "opencode",
        ".config/opencode/opencode.json",
        '{"mlxd": {"baseURL": "http://localhost:9000/v1"}}',
        WARNING,
        "asks port 9000",
    ),
    (
        "Claude Code",
        ".claude/settings.json",
        '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8642"}}',
        OK,
        "asks this",
    ),
    (
        "Claude Code",
        ".claude/settings.json",
        '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8642/v1"}}',
        WARNING,
        "/v1/v1",
    ),
    ("pi", ".pi/agent/models.json", '{"baseUrl": "http://localhost:1234/v1"}', NOTE, "not ask"),
]


@pytest.mark.parametrize(("agent", "place", "text", "severity", "words"), CONFIGS)
def test_an_agents_configuration_is_found_and_compared(
    tmp_path, agent, place, text, severity, words
):
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(text)
    [finding] = check_agents(tmp_path, 8642)
    assert (finding.check, finding.severity) == (agent, severity)
    assert words in finding.words


MINE = DiskCacheFacts("/c/read", 0o40700)
ON = DiskStatus(is_on=True)
DISK_CACHES = [
    (DiskCacheFacts(), OK, "off"),
    (MINE, OK, "only you can read"),
    (replace(MINE, mode=None), OK, "not there yet"),
    (replace(MINE, mode=0o100600), WARNING, "/c/read is no folder"),
    (replace(MINE, mode=0o40755), WARNING, "others may look into /c/read"),
    (replace(MINE, is_writable=False), WARNING, "nothing can be kept in /c/read"),
    (
        replace(MINE, status=replace(ON, bad_files=2)),
        WARNING,
        "files that could not be used, and went: 2",
    ),
    (
        replace(MINE, status=replace(ON, failed_writes=1, last_failure="no space")),
        WARNING,
        "writes that failed: 1, the last one: no space",
    ),
    (
        replace(MINE, status=replace(ON, free_bytes=GB, floor_bytes=2 * GB)),
        NOTE,
        "nothing is written: 1.0 GB are free, and 2.0 GB are to stay so",
    ),
    (replace(MINE, status=DiskStatus()), OK, "only you can read"),
    (
        replace(MINE, status=DiskStatus(last_failure="it is read-only")),
        WARNING,
        "the daemon keeps nothing there: it is read-only",
    ),
]


@pytest.mark.parametrize(("facts", "severity", "words"), DISK_CACHES)
def test_the_disk_cache_is_private_and_written_to(facts, severity, words):
    findings = list(check_disk_cache(facts))
    assert worst(findings) is severity
    assert words in findings[-1].words
    assert bool(findings[-1].fix) == (severity is not OK)


def test_where_no_agent_is_there_is_nothing_to_say(tmp_path):
    assert not list(check_agents(tmp_path, 8642))


def test_the_worst_decides_and_is_counted():
    findings = [Finding("a", OK, "fine"), Finding("b", PROBLEM, "bad", "Mend it.")]
    assert worst(findings) is PROBLEM
    assert worst([]) is OK
    assert summary(findings) == "1 problem, 0 warnings."
    assert summary(findings[:1]) == "Nothing is wrong."
    assert doctor_json(findings)["findings"][1]["fix"] == "Mend it."


def doctor(home: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "daemon.cli", "doctor", *flags],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_installation_without_a_model_is_a_problem_with_a_remedy(tmp_path):
    done = doctor(tmp_path, "--json", MLXD_PORT=str(free_port()))
    assert done.returncode == ExitCode.FAILED, done.stderr
    found = json.loads(done.stdout)
    assert found["worst"] == "problem"
    by_name = {each["check"]: each for each in found["findings"]}
    assert by_name["model"]["severity"] == "problem"
    assert by_name["mlx-lm"]["severity"] == "ok"
    assert {"machine", "port", "logs", "disk", "disk cache", "settings"} <= set(by_name)


def test_a_wrong_setting_and_a_running_daemon_are_found(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text("\nprot = 1\n")
    with running() as daemon:
        done = doctor(tmp_path, MLXD_PORT=str(daemon.port))
        assert f"process {daemon.process.pid}" in " ".join(done.stdout.split())
    done = doctor(tmp_path, MLXD_CONFIG=str(file))
    assert done.returncode == ExitCode.FAILED
    assert "line 2: prot is no setting" in " ".join(done.stdout.split())
    assert "did you mean `port`" in " ".join(done.stdout.split())
