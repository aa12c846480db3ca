"""The daemon's own token as a process makes it: where it is, who can read it, and without one."""

import os
import stat
from pathlib import Path

import pytest

from tests.e2e.processes import running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_token_stands_in_a_file_of_this_account_and_opens_what_is_closed(home: Path) -> None:
    with running(has_token=True) as daemon:
        refused = daemon.http.post("/mlxd/cache/clear")
        assert refused.status_code == 401
        (file,) = home.rglob("token")
        assert str(file) in refused.json()["error"]["message"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        token = file.read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        assert daemon.http.post("/mlxd/cache/clear", headers=headers).status_code == 200
        daemon.chat("hi", session_id="s")
        assert daemon.http.get("/mlxd/requests", headers=headers).json()["shows_texts"] is True
        daemon.stop()
        assert daemon.process.stderr is not None
        assert token not in daemon.process.stderr.read()


def test_where_no_token_can_be_kept_the_daemon_serves_and_what_is_closed_stays_so(
    home: Path,
) -> None:
    for name in (".local", "Library"):
        (home / name).write_text("a file where a folder belongs")
    with running(has_token=True) as daemon:
        assert daemon.chat("hi").status_code == 200
        for given in ("Bearer", "Bearer None"):
            refused = daemon.http.post("/mlxd/cache/clear", headers={"authorization": given})
            assert refused.status_code == 401
            assert "could not keep a token" in refused.json()["error"]["message"]
