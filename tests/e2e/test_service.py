"""What makes a daemon a good service: it ends when asked, and gives up what makes it crash."""

import os
import re
from pathlib import Path

import pytest

from daemon import paths
from daemon.client import Client
from daemon.errors import Refused
from daemon.starts import Starts
from tests.e2e.processes import BOUND_SECONDS, running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_daemon_ends_when_it_is_asked_to_by_its_own_account_only(tmp_path: Path) -> None:
    with running(has_token=True, is_service=True) as daemon:
        assert daemon.chat(max_tokens=1).status_code == 200
        with pytest.raises(Refused, match="own token"):
            Client(daemon.port, tmp_path / "none").stop()
        assert daemon.http.get("/health").status_code == 200
        Client(daemon.port, paths.token_file()).stop()
        assert daemon.process.wait(BOUND_SECONDS) == 0
        assert "Traceback" not in daemon.process.stderr.read()
        assert not Starts(paths.starts_file()).read().is_open


def test_running_requests_have_their_grace_when_it_is_asked_to_end() -> None:
    script = {"reply": "so it is", "step_seconds": 0.05}
    with running(has_token=True, script=script, grace_seconds=5.0) as daemon:
        answer = daemon.socket_with({"messages": [{"role": "user", "content": "x"}]})
        daemon.wait_for_requests(running=1)
        Client(daemon.port, paths.token_file()).stop()
        assert b"so it is" in b"".join(iter(lambda: answer.recv(65536), b""))
        assert daemon.process.wait(BOUND_SECONDS) == 0


def test_after_three_crashes_it_starts_without_its_model_and_says_so() -> None:
    for _ in range(2):
        Starts(paths.starts_file(), counted=True).begin()  # and no more is heard of it
    with running(is_service=True) as daemon:
        daemon.process.kill()
        daemon.process.wait(BOUND_SECONDS)
    with running(is_service=True, has_token=True, wait="failed") as daemon:
        words = daemon.engine()["model"]["error"]
        assert re.search(r"crashed 3 times.*`mlxd load`", words)
        refused = daemon.chat(max_tokens=1)
        assert refused.status_code == 503
        assert "crashed 3 times" in refused.json()["error"]["message"]
        assert daemon.http.get("/health").status_code == 503
        Client(daemon.port, paths.token_file()).load_model(None)  # somebody knows better
        assert daemon.chat(max_tokens=1).status_code == 200
        assert daemon.stop() == 0
        assert "crashed 3 times" in daemon.process.stderr.read()
    with running(is_service=True) as daemon:  # a clean end, as of `mlxd restart`, begins anew
        assert daemon.chat(max_tokens=1).status_code == 200


def test_a_stop_while_the_model_loads_is_no_crash() -> None:
    loading = {"is_service": True, "script": {"load_seconds": 60.0}, "wait": "loading"}
    with running(**loading) as daemon:
        assert daemon.stop() == 0
    assert not Starts(paths.starts_file()).read().is_open
