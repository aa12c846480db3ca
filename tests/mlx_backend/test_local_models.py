"""Which folders on the disk are models that can be served."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_backend.errors import ModelNotFound
from mlx_backend.local_models import described, local_models, remove
from mlx_backend.messages import LocalModel

LLAMA = {"model_type": "llama", "max_position_embeddings": 4096}


def write_model(
    folder: Path, config: object = LLAMA, weights: tuple[str, ...] = ("model.safetensors",)
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in weights:
        (folder / name).write_bytes(b"x" * 100)
    return folder


def write_repository(hub: Path, repo: str, *, revision: str = "abc", **content: object) -> Path:
    place = hub / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision, encoding="utf-8")
    return write_model(place / "snapshots" / revision, **content)  # type: ignore[arg-type]


def names(hub: Path, own: Path) -> list[str]:
    return [model.name for model in local_models(hub, own)]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def test_models_of_both_places_are_found_with_their_sizes(hub: Path, own: Path) -> None:
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    sharded = write_repository(hub, "someone/b-Model--4bit", weights=shards)
    plain = write_model(own / "A-model")
    assert local_models(hub, own, 1000) == (
        LocalModel("A-model", str(plain.resolve()), "", 100, 1000),
        LocalModel("b-Model--4bit", str(sharded), "someone/b-Model--4bit", 200, 1000),
    )
    assert [model.context_size for model in local_models(hub, own)] == [4096, 4096]


def test_where_there_is_nothing_nothing_is_found(hub: Path, own: Path) -> None:
    assert local_models(hub, own) == ()


def test_what_cannot_be_served_is_not_listed(hub: Path, own: Path) -> None:
    write_repository(hub, "x/half", weights=("model-00001-of-00002.safetensors",))
    write_repository(hub, "x/no-weights", weights=("pytorch_model.bin",))
    write_repository(hub, "x/whisper", config={"model_type": "whisper-like"})
    write_repository(hub, "x/not-json", config=[1])
    write_repository(hub, "x/own-code", config={**LLAMA, "model_file": "model.py"})
    without_revision = write_repository(hub, "x/without-revision")
    (without_revision.parent.parent / "refs" / "main").unlink()
    dangling = write_repository(hub, "x/dangling", weights=())
    (dangling / "model.safetensors").symlink_to(hub / "gone")
    write_model(own / ".half-written")
    (own / "a-file").write_text("x", encoding="utf-8")
    write_repository(hub, "x/whole")
    assert names(hub, own) == ["whole"]


def test_model_types_that_mlx_lm_takes_for_another_are_served(hub: Path, own: Path) -> None:
    write_repository(hub, "x/mistral", config={**LLAMA, "model_type": "mistral"})
    assert names(hub, own) == ["mistral"]


def test_the_context_is_the_tokenizers_where_the_config_does_not_say(hub: Path, own: Path) -> None:
    folder = write_model(own / "quiet", config={"model_type": "llama"})
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 77}', encoding="utf-8")
    [model] = local_models(hub, own)
    assert model.context_size == 77


def test_a_model_is_described_by_folder_or_repository(hub: Path, tmp_path: Path) -> None:
    write_repository(hub, "someone/m")
    folder = write_model(tmp_path / "elsewhere" / "mine")
    assert described("someone/m", hub).key == "someone/m"
    mine = described(str(folder), hub)
    assert (mine.name, mine.key) == ("mine", str(folder.resolve()))
    with pytest.raises(ModelNotFound, match="mlxd pull someone/else"):
        described("someone/else", hub)


def test_a_model_is_deleted_from_the_two_places_and_from_nowhere_else(
    hub: Path, own: Path, tmp_path: Path
) -> None:
    write_repository(hub, "someone/m")
    write_repository(hub, "someone/other")
    write_model(own / "a")
    for model in local_models(hub, own):
        if model.name != "other":
            remove(model, hub, own)
    assert names(hub, own) == ["other"]
    assert not (hub / "models--someone--m").exists()
    mine = described(str(write_model(tmp_path / "elsewhere" / "mine")), hub)
    with pytest.raises(ModelNotFound, match="yours"):
        remove(mine, hub, own)
    assert (tmp_path / "elsewhere" / "mine" / "config.json").is_file()


def test_to_look_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mlx_backend.local_models import *\n"
        f"local_models(hub_cache(), Path({str(tmp_path)!r}))\n"
        "print(sorted({'mlx', 'mlx_lm', 'transformers', 'huggingface_hub.hf_api'} & "
        "sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
