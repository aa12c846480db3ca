"""`mlxd serve` with real models of random weights on its disk, and the commands for them."""

import re
from pathlib import Path

import pytest

from mlx_backend.tiny_models import write_folder
from tests.e2e.accounts import Account, serving
from tests.e2e.processes import Daemon
from tests.mlx_backend.fake_hub import serving as hub_serving

FULL, HYBRID = "tiny-full", "someone/tiny-hybrid"
TEXT = "The same words for both of them, so that nothing but the model differs. " * 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An account with a model in a folder of its own, and one that came from the hub."""
    home = tmp_path_factory.mktemp("home")
    write_folder("tiny-full", home / "models" / FULL)
    place = home / "hub" / "models--someone--tiny-hybrid"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc", encoding="ascii")
    (place / "snapshots").mkdir()
    write_folder("tiny-hybrid", place / "snapshots" / "abc")
    return home


def said(daemon: Daemon, model: str) -> str:
    answer = daemon.chat(TEXT, model=model, max_tokens=8, temperature=0)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"].get("content") or ""


def test_two_real_models_take_turns_in_one_memory_and_leave_nothing_in_it(home: Path) -> None:
    account = Account(home)
    with serving(account, "--model", str(home / "models" / FULL)) as daemon:
        listed = daemon.http.get("/v1/models").json()["data"]  # and the first one loads meanwhile
        assert [model["id"] for model in listed] == [FULL, "tiny-hybrid"]
        assert all(model["context_length"] > 0 for model in listed)
        first = {model: said(daemon, model) for model in (FULL, HYBRID)}
        for model in (FULL, HYBRID):
            said(daemon, model)  # what a second request stores beside the first is there, too
        base = daemon.engine()
        for _ in range(5):
            assert {model: said(daemon, model) for model in (FULL, HYBRID)} == first
        after = daemon.engine()
        for name in ("bytes", "arrays", "tokens"):
            assert after["cache"][name] == base["cache"][name], name
        grown = after["memory"]["device_active_bytes"] - base["memory"]["device_active_bytes"]
        assert abs(grown) < base["models"][0]["weight_bytes"] / 4
        assert [each["state"] for each in after["models"]] == ["unloaded", "ready"]
        last = daemon.http.get("/mlxd/requests").json()["data"][-1]
        assert last["reused"] > 0
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()


def test_models_are_listed_chosen_and_deleted_from_the_command_line(home: Path) -> None:
    account = Account(home)
    config = Path(account.json("config", "path")["path"])
    assert account.run("config", "set", "model", str(home / "models" / FULL)).returncode == 0
    limits = ("--max-loaded-models", "2", "--memory-bytes", "64MB")
    with serving(account, "--keep-alive", "never", *limits) as daemon:
        said(daemon, "default")
        shown = account.run("models").stdout
        assert re.search(r"^tiny-full \* .* ready", shown, flags=re.MULTILINE)
        assert "someone/tiny-hybrid" in shown
        used = account.run("use", "tiny-hybrid")
        assert (used.returncode, used.stdout) == (0, "tiny-hybrid is the default from now on.\n")
        assert 'model = "someone/tiny-hybrid"' in config.read_text(encoding="utf-8")
        said(daemon, "claude-x")
        states = {each["id"]: each["state"] for each in account.json("models")}
        assert states == {"tiny-hybrid": "ready", FULL: "ready"}
        budget = daemon.engine()["memory"]["budget_bytes"]
        assert budget == 64_000_000  # what was set aside is not for weights, however many there are
        assert account.run("unload").stdout == "Nothing is loaded.\n"
        assert account.run("status").returncode == 0
        kept = account.run("rm", "tiny-hybrid")
        assert (kept.returncode, "--force" in kept.stderr) == (1, True)
        assert account.run("rm", str(home / "models" / FULL)).returncode == 1  # not mlxd's to take
        assert account.run("rm", "tiny-hybrid", "--force").returncode == 0
        assert not (home / "hub" / "models--someone--tiny-hybrid").exists()
    assert (home / "models" / FULL / "config.json").is_file()
    gone = account.run("serve")
    assert (gone.returncode, "mlxd pull someone/tiny-hybrid" in gone.stderr) == (78, True)


def test_a_model_is_fetched_and_chosen_before_any_daemon_runs(tmp_path: Path) -> None:
    folder = write_folder("tiny-full", tmp_path / "there")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    account = Account(tmp_path)
    with hub_serving("someone/tiny", files) as hub:
        account.environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        pulled = account.json("pull", "someone/tiny")
        assert pulled["repo"] == "someone/tiny"
        assert pulled["weight_bytes"] == len(files["model.safetensors"])
        used = account.run("use", "tiny")
        assert (used.returncode, used.stdout) == (
            0,
            "tiny is the default from the next start on.\n",
        )
        unknown = account.run("use", "nonsense")
        assert (unknown.returncode, "Known: `tiny`" in unknown.stderr) == (1, True)
        missing = account.run("pull", "someone/else")
        assert (missing.returncode, "no repository someone/else" in missing.stderr) == (1, True)
    [listed] = account.json("models")
    assert (listed["id"], listed["is_default"], listed["state"]) == ("tiny", True, "")
    assert account.json("rm", "someone/tiny", "--force")["deleted"]
    assert account.run("models").stdout == "No models here. `mlxd pull REPO` fetches one.\n"


def test_a_default_model_that_is_larger_than_the_memory_is_a_wrong_setting(tmp_path: Path) -> None:
    folder = write_folder("tiny-full", tmp_path / "huge")
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(8 * 10**12)  # sparse: it takes no room on the disk
    refused = Account(tmp_path).run("serve", "--model", str(folder))
    assert refused.returncode == 78
    assert "huge needs 8,000,000,000,000 bytes of memory" in refused.stderr
    assert "Traceback" not in refused.stderr
