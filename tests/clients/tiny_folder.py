"""A random model's folder for prompts as long as agents send them: quick to read, real KV.

The tests' byte-level tokenizer would make 60,000 tokens of such a prompt; this one is trained on
this repository's text (3 to 4 characters a token), and the model has a single small layer, so that
20,000 tokens are read within seconds on two cores. What it would say is noise: its tokens are
forced by a script. The template is ChatML with Hermes calls, and thoughts that stay in history.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from mlx_backend.tiny_models import KINDS
from mlx_backend.tiny_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS, STOP_TOKENS, TEMPLATES

CONTEXT_SIZE = 131_072
VOCABULARY_SIZE = 4096
ROOT = Path(__file__).parent.parent.parent
ONE_SMALL_LAYER = {
    **KINDS["tiny-full"].config,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_SIZE,
}


def write_folder(path: Path, *, template: str = "plain") -> Path:
    """Write the model and its tokenizer to `path`, a new folder; returns it."""
    path.mkdir(parents=True)
    tokenizer = trained_tokenizer()
    stop_ids = [tokenizer.token_to_id(token) for token in STOP_TOKENS]
    config = {
        **ONE_SMALL_LAYER,
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": stop_ids[0],
    }
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"eos_token_id": stop_ids})
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": STOP_TOKENS[0],
            "pad_token": STOP_TOKENS[1],
            "bos_token": None,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_SIZE,
            "chat_template": TEMPLATES[template],
        },
    )
    return path


def trained_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(CONTROL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [ROOT / "README.md", *sorted((ROOT / "daemon").rglob("*.py"))]
    tokenizer.train_from_iterator((p.read_text(encoding="utf-8") for p in texts), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
