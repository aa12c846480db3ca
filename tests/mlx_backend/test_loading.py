"""Models from folders: what a whole one tells, and what is said of a broken one."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_backend.errors import (
    ModelDamaged,
    ModelNotFound,
    ModelUnsupported,
    PromptRejected,
    PromptTooLong,
)
from mlx_backend.file_limit import open_file_limit_kept
from mlx_backend.interface import LoadedModel
from mlx_backend.loading import MlxModel, load
from mlx_backend.messages import AnswerForm, CacheKind, Prompt, Sampling, StopFound
from mlx_backend.model_files import read_header
from mlx_backend.tiny_models import write_folder
from mlx_backend.tiny_tokenizer import token_count, token_id


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("tiny-full", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


@pytest.fixture
def loaded(whole: Path) -> MlxModel:
    return load(str(whole))


def edit(file: Path, **changes: object) -> None:
    """Set keys of a JSON file; None takes one away."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def greedy(model: LoadedModel, prompt: Prompt, count: int) -> list[int]:
    row = model.backend.open_row(None, len(prompt) + count + 1)
    model.backend.read(row, prompt.tokens[:-1])
    model.backend.start_decoding(row, int(prompt.tokens[-1]), Sampling(), prompt.tokens)
    tokens = [model.backend.step()[0].token for _ in range(count)]
    model.backend.release(row)
    return tokens


def test_a_whole_model_says_what_it_is(loaded: MlxModel, whole: Path) -> None:
    info = loaded.info
    assert (info.name, info.path) == ("tiny", str(whole))
    assert info.cache_kind is CacheKind.SLICEABLE
    assert info.vocabulary_size == token_count()
    spans = read_header(whole / "model.safetensors").spans
    assert info.weight_bytes == sum(end - start for start, end in spans)
    assert len(info.identity) == 64
    assert info.warnings == ()


def test_a_loaded_model_answers(loaded: MlxModel) -> None:
    model: LoadedModel = loaded
    prompt = model.prompts.chat([{"role": "user", "content": "Hello"}])
    tokens = greedy(model, prompt, 4)
    assert all(0 <= token < model.info.vocabulary_size for token in tokens)
    output = model.output(AnswerForm(stop=("never said",)))
    pieces = [*output.push(tokens), *output.finish()]
    assert not any(isinstance(piece, StopFound) for piece in pieces)


@pytest.mark.parametrize(
    ("kind", "cache_kind"),
    [("tiny-sliding", CacheKind.CHECKPOINTED), ("tiny-hybrid", CacheKind.CHECKPOINTED)],
)
def test_the_kind_of_cache_is_the_models(kind: str, cache_kind: CacheKind, tmp_path: Path) -> None:
    info = load(str(write_folder(kind, tmp_path / kind)), name="mine").info
    assert (info.name, info.cache_kind) == ("mine", cache_kind)
    assert info.checkpoint_bytes > 0


def test_quantised_kv_is_said_and_has_an_identity_of_its_own(whole: Path, loaded: MlxModel) -> None:
    quantised = load(str(whole), kv_bits=8).info
    assert quantised.kv_bits == 8
    identities = {
        loaded.info.identity,
        quantised.identity,
        load(str(whole), kv_bits=4).info.identity,
    }
    assert len(identities) == 3
    assert quantised.span_token_bytes < loaded.info.span_token_bytes


# What a broken model is said to be

Break = Callable[[Path], object]


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)


def name_a_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def drop_a_weight(folder: Path) -> None:
    import mlx.core as mx

    file = str(folder / "model.safetensors")
    weights: Any = mx.load(file)
    weights = {name: mx.array(np.array(weights[name])) for name in list(weights)[1:]}
    mx.save_safetensors(file, weights)


BREAKS: list[tuple[Break, type[Exception], str]] = [
    (lambda f: shutil.rmtree(f), ModelNotFound, "no folder"),
    (lambda f: (f / "config.json").unlink(), ModelDamaged, "has no config.json"),
    (lambda f: (f / "config.json").write_text("{"), ModelDamaged, "config.json"),
    (lambda f: (f / "config.json").write_text("[1]"), ModelDamaged, "config.json"),
    (lambda f: edit(f / "config.json", model_type=None), ModelDamaged, "model_type"),
    (lambda f: edit(f / "config.json", model_type="nope"), ModelUnsupported, "nope"),
    (lambda f: edit(f / "config.json", model_type="../x"), ModelUnsupported, "not supported"),
    (lambda f: edit(f / "config.json", model_type="base"), ModelUnsupported, "cannot run"),
    (lambda f: edit(f / "config.json", model_file="x.py"), ModelUnsupported, "code of its own"),
    (lambda f: edit(f / "config.json", hidden_size=None), ModelDamaged, "hidden_size"),
    (lambda f: edit(f / "config.json", num_hidden_layers=9), ModelDamaged, "cannot be loaded"),
    (lambda f: (f / "model.safetensors").unlink(), ModelDamaged, "no weights"),
    (
        lambda f: (f / "model.safetensors").rename(f / "model.gguf"),
        ModelUnsupported,
        "not as safetensors",
    ),
    (cut_weights, ModelDamaged, "bytes long"),
    (lambda f: (f / "model.safetensors").write_bytes(b"abc"), ModelDamaged, "cut short"),
    (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 99), ModelDamaged, "cut short"),
    (
        lambda f: (f / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]"),
        ModelDamaged,
        "header",
    ),
    (name_a_missing_shard, ModelDamaged, "model-00001-of-00002.safetensors"),
    (drop_a_weight, ModelDamaged, "cannot be loaded"),
    (lambda f: (f / "tokenizer.json").unlink(), ModelDamaged, "tokenizer"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), ModelDamaged, "tokenizer"),
    (
        lambda f: edit(f / "tokenizer_config.json", chat_template="{% if %}"),
        ModelDamaged,
        "chat template",
    ),
]


@pytest.mark.parametrize(("break_it", "error", "words"), BREAKS)
def test_a_broken_model_is_named_for_what_it_lacks(
    folder: Path, break_it: Break, error: type[Exception], words: str
) -> None:
    break_it(folder)
    with pytest.raises(error, match=words):
        load(str(folder))


@pytest.mark.parametrize("name", ["someone/never-downloaded", "nothing", "a/b/c", "..", "x y/z"])
def test_what_is_not_on_this_machine_is_not_found_and_not_fetched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelNotFound, ModelDamaged)):
        load(name)


def test_a_downloaded_repository_is_found_by_its_name(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    repository = tmp_path / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(whole, repository / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    info = load("someone/tiny").info
    assert info.name == "tiny"
    assert info.path.startswith(str(tmp_path))


def test_a_model_without_a_template_completes_text_only(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=None)
    model = load(str(folder))
    assert len(model.prompts.text("abc")) == 3
    with pytest.raises(PromptRejected):
        model.prompts.chat([{"role": "user", "content": "a"}])
    assert any("template" in warning for warning in model.info.warnings)


def test_a_tokenizer_that_is_set_to_truncate_does_not(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", truncation=truncation)
    prompts = load(str(folder)).prompts
    assert len(prompts.text("x" * 32)) == 32
    assert len(prompts.chat([{"role": "user", "content": "x" * 32}])) > 32


# Stop ids, context, vocabulary


def test_stop_ids_are_the_union_of_what_the_files_say(folder: Path) -> None:
    ends = {name: token_id(name) for name in ("<|im_end|>", "<|endoftext|>", "<|im_start|>")}
    edit(folder / "config.json", eos_token_id=5)
    edit(folder / "generation_config.json", eos_token_id=[6, 7])
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    info = load(str(folder)).info
    assert info.stop_ids == {5, 6, 7, ends["<|endoftext|>"], ends["<|im_end|>"]}


def test_a_stop_id_beyond_the_vocabulary_is_left_out(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[6, 10**6])
    assert max(load(str(folder)).info.stop_ids) < token_count()


def test_the_context_is_the_models_and_an_option_only_lowers_it(folder: Path) -> None:
    def size(option: int | None = None) -> int:
        return load(str(folder), context_size=option).info.context_size

    edit(folder / "config.json", max_position_embeddings=4096)
    assert (size(), size(1000), size(10**6)) == (4096, 1000, 4096)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    edit(folder / "config.json", rope_scaling=scaling)
    assert size() == 16384


def test_a_context_that_is_cut_is_said(folder: Path) -> None:
    edit(folder / "config.json", max_position_embeddings=4096)
    assert load(str(folder), context_size=4096).info.warnings == ()
    (warning,) = load(str(folder), context_size=5000).info.warnings
    assert "4096" in warning
    assert "5000" in warning


def test_the_context_bounds_what_is_encoded(folder: Path) -> None:
    prompts = load(str(folder), context_size=1000).prompts
    with pytest.raises(PromptTooLong) as caught:
        prompts.text("a " * 100_000)
    assert caught.value.limit == 1000


# What is recommended, and what is to be known of it


def test_the_makers_recommendation_is_told(folder: Path) -> None:
    assert load(str(folder)).info.default_sampling is None
    edit(folder / "generation_config.json", temperature=0.6, top_p=0.95, top_k=20)
    expected = Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert load(str(folder)).info.default_sampling == expected


def test_rows_that_cannot_decode_together_are_said(whole: Path) -> None:
    (warning,) = load(str(whole), kv_bits=8).info.warnings
    assert warning.startswith("Rows of this model decode in turn")
    assert "QuantizedKVCache" in warning


def test_ids_are_checked_against_the_embedding_and_not_the_config(folder: Path) -> None:
    model = load(str(folder))
    model.prompts.ids([token_count() - 1])
    with pytest.raises(PromptRejected):
        model.prompts.ids([token_count()])


# Identity


def change_one_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


CHANGES: list[Break] = [
    change_one_weight,
    lambda f: edit(f / "config.json", rope_theta=12345.0),
    lambda f: edit(f / "tokenizer_config.json", chat_template="{{ messages }}"),
    lambda f: (f / "tokenizer.json").write_text((f / "tokenizer.json").read_text() + "\n"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_file_changes_the_identity(folder: Path, change: Break) -> None:
    before = load(str(folder)).info.identity
    assert load(str(folder)).info.identity == before
    change(folder)
    assert load(str(folder)).info.identity != before


def test_large_weights_are_told_apart_without_reading_them_all(tmp_path: Path) -> None:
    from mlx_backend.identity import identity

    file = tmp_path / "model.safetensors"
    size = 40 << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})

    def written(tail: bytes) -> str:
        with file.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header.encode())
            out.truncate(8 + len(header) + size - len(tail))
            out.seek(0, os.SEEK_END)
            out.write(tail)
        os.utime(file, ns=(1, 1))
        return identity(
            tmp_path, [file], cache_classes=[], kv_bits=None, adapter=None, mlx_lm_version="0.1.2"
        )

    assert written(b"a") == written(b"a")
    assert written(b"a") != written(b"b")


def test_state_that_another_version_of_the_models_code_computed_is_another_models(
    folder: Path,
) -> None:
    from mlx_backend.identity import identity

    def computed_by(version: str) -> str:
        return identity(
            folder, [], cache_classes=[], kv_bits=None, adapter=None, mlx_lm_version=version
        )

    assert computed_by("0.32.2") == computed_by("0.32.2") != computed_by("0.32.3")


def test_an_adapter_changes_answers_and_identity(folder: Path, tmp_path: Path) -> None:
    import mlx.core as mx

    plain = load(str(folder))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    parameters = {"rank": 2, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": parameters}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    weights: Any = mx.load(str(folder / "model.safetensors"))
    name = f"model.layers.{layers - 1}.self_attn.q_proj"
    rows, columns = weights[f"{name}.weight"].shape
    mx.save_safetensors(
        str(adapter / "adapters.safetensors"),
        {f"{name}.lora_a": mx.ones((columns, 2)), f"{name}.lora_b": mx.ones((2, rows))},
    )
    adapted = load(str(folder), adapter=str(adapter))
    assert adapted.info.identity != plain.info.identity
    prompt = plain.prompts.text("Hello there, what is it that you do all day long?")
    assert greedy(adapted, prompt, 12) != greedy(plain, prompt, 12)
    with pytest.raises(ModelNotFound):
        load(str(folder), adapter=str(tmp_path / "none"))


# The limit on open files


def test_importing_mlx_lm_leaves_the_file_limit_alone() -> None:
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (2500, 3000))\n"
        "from mlx_backend.file_limit import open_file_limit_kept as kept\n"
        "with kept():\n    import mlx_lm\n"
        "assert r.getrlimit(r.RLIMIT_NOFILE) == (3000, 3000), r.getrlimit(r.RLIMIT_NOFILE)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_low_file_limit_is_raised_as_far_as_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with open_file_limit_kept():
            resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(4096, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
