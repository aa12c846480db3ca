"""What is fetched from a hub, what is not, and what is said when it cannot be."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from mlx_backend.downloads import SPARE_BYTES, fetch_repository
from mlx_backend.errors import ModelNotFound, ModelUnsupported
from mlx_backend.local_models import local_models
from tests.mlx_backend.fake_hub import FakeHub, serving

REPO = "someone/tiny"
CONFIG = json.dumps({"model_type": "llama", "max_position_embeddings": 512}).encode()
WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "modeling_tiny.py": b"raise SystemExit('code of its own')",
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# Tiny",
    "consolidated.safetensors": b"the same weights again",
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(REPO, FILES) as found:
        yield found


class Progress:
    """What was told of a download, as (done, total)."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int | None]] = []

    def __call__(self, done: int, total: int | None) -> None:
        self.told.append((done, total))


def fetch(hub: FakeHub, cache: Path, progress: Progress | None = None, repo: str = REPO) -> Path:
    return fetch_repository(repo, cache, progress or Progress(), hub.url)


def test_what_mlx_lm_needs_is_fetched_and_neither_code_nor_pickles_nor_anything_twice(
    hub: FakeHub, tmp_path: Path
) -> None:
    progress = Progress()
    folder = fetch(hub, tmp_path, progress)
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    total = len(CONFIG) + 2 + len(WEIGHTS)
    assert (progress.told[0], progress.told[-1]) == ((0, total), (total, total))
    done = [each for each, _ in progress.told]
    assert done == sorted(done)
    assert any(0 < each < total for each in done)


def test_what_was_fetched_is_found_where_models_are_looked_for(
    hub: FakeHub, tmp_path: Path
) -> None:
    fetch(hub, tmp_path)
    [model] = local_models(tmp_path, tmp_path / "none")
    assert (model.name, model.repo, model.key) == ("tiny", REPO, REPO)
    assert (model.weight_bytes, model.context_size) == (len(WEIGHTS), 512)


def test_what_is_there_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    fetch(hub, tmp_path)
    hub.fetched.clear()
    progress = Progress()
    fetch(hub, tmp_path, progress)
    assert hub.fetched == []
    assert progress.told[0][0] == progress.told[0][1]


def test_a_download_that_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """The hub's client writes 10 MiB at a time."""
    weights = WEIGHTS * 12
    with serving(REPO, {"config.json": CONFIG, "model.safetensors": weights}) as hub:
        hub.cut_after["model.safetensors"] = 11 << 20
        folder = fetch(hub, tmp_path)
    starts = [start for name, start in hub.fetched if name == "model.safetensors"]
    assert starts == [0, 10 << 20]
    assert (folder / "model.safetensors").read_bytes() == weights


def test_the_disk_is_looked_at_before_anything_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.announced["model.safetensors"] = 10**17
    with pytest.raises(ModelNotFound) as caught:
        fetch(hub, tmp_path)
    assert "100,000,000,0" in str(caught.value)
    assert f"{SPARE_BYTES:,}" in str(caught.value)
    assert hub.fetched == []


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_what_mlx_lm_cannot_run_is_not_fetched(tmp_path: Path, missing: str) -> None:
    files = {name: content for name, content in FILES.items() if name != missing}
    with serving(REPO, files) as hub, pytest.raises(ModelUnsupported, match="mlx-community"):
        fetch(hub, tmp_path)
    assert hub.fetched == []


@pytest.mark.parametrize("repo", ["someone/else", "no name/at all", "x/y/z"])
def test_a_repository_that_is_not_there_is_said_in_a_sentence(
    hub: FakeHub, tmp_path: Path, repo: str
) -> None:
    with pytest.raises(ModelNotFound, match=r"no repository|no name of a repository"):
        fetch(hub, tmp_path, repo=repo)
    assert not list(tmp_path.glob("models--*"))


def test_a_hub_that_is_not_there_is_said_in_a_sentence(hub: FakeHub, tmp_path: Path) -> None:
    hub.url = "http://127.0.0.1:9"
    with pytest.raises(ModelNotFound, match="could not be fetched"):
        fetch(hub, tmp_path)


def test_offline_nothing_is_asked_for(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as the variable does at its import
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        fetch(hub, tmp_path)
    assert hub.requests == []
