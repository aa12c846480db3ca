"""A model's folder is data: nothing in it is run, unless that is asked for."""

import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlx_backend.errors import BackendError, ModelUnsupported
from mlx_backend.loading import load, load_prompts
from mlx_backend.local_models import local_models
from mlx_backend.tiny_models import write_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("tiny-full", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "models" / "tiny"))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """It is there once something of the folder was run."""
    return tmp_path / "something-ran"


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self._made,)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def write_code(folder: Path, ran: Path) -> None:
    """mlx-lm's own code for this type of model, after a deed of its own."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    (folder / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(ran)!r}).mkdir(exist_ok=True)\n"
        f"from mlx_lm.models.{kind} import Model, ModelArgs\n"
    )


def test_the_payload_of_these_tests_would_be_seen(ran: Path) -> None:
    pickle.loads(pickle.dumps(Payload(ran)))
    assert ran.exists()


PICKLES = ["pytorch_model.bin", "model.pkl", "training_args.bin", "tokenizer.model", "model.npz"]


@pytest.mark.parametrize("is_whole", [True, False], ids=["beside a model", "instead of one"])
def test_pickles_are_not_read(folder: Path, ran: Path, is_whole: bool) -> None:
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Payload(ran)))
    if is_whole:
        load(str(folder))
    else:
        (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(ran)))
        with pytest.raises(BackendError):
            load(str(folder))
        (folder / "model.safetensors").unlink()
        with pytest.raises(ModelUnsupported, match="not as safetensors"):
            load(str(folder))
    assert not ran.exists()


def test_code_of_a_model_is_refused_and_not_run(folder: Path, ran: Path) -> None:
    write_code(folder, ran)
    edit(folder / "config.json", model_file="own.py")
    with pytest.raises(ModelUnsupported, match="--trust-remote-code yes"):
        load(str(folder))
    load_prompts(str(folder))
    assert not ran.exists()


def test_code_that_transformers_would_run_is_not_run(folder: Path, ran: Path) -> None:
    write_code(folder, ran)
    named = {"AutoConfig": "own.Model", "AutoTokenizer": ["own.Model", "own.Model"]}
    for file in ("config.json", "tokenizer_config.json"):
        edit(folder / file, auto_map=named)
    with suppress(BackendError):  # it may do without, or refuse
        load(str(folder))
    assert not ran.exists()


def test_code_of_a_model_is_run_if_it_is_trusted(folder: Path, ran: Path) -> None:
    write_code(folder, ran)
    edit(folder / "config.json", model_file="own.py")
    first = load(str(folder), trust_remote_code=True)
    assert ran.exists()
    with (folder / "own.py").open("a") as code:
        code.write("# and something else\n")
    second = load(str(folder), trust_remote_code=True)
    assert first.info.identity != second.info.identity


def test_a_model_with_code_is_listed_only_where_it_can_be_served(folder: Path, ran: Path) -> None:
    write_code(folder, ran)
    nowhere, own = folder.parent / "no-hub", folder.parent
    assert [model.name for model in local_models(nowhere, own)] == ["tiny"]
    edit(folder / "config.json", model_file="own.py", model_type="of-its-own")
    assert local_models(nowhere, own) == ()
    [found] = local_models(nowhere, own, trust_remote_code=True)
    assert found.name == "tiny"
    assert not ran.exists()
