"""Random models of a few hundred KB, made on the spot: every cache class of mlx-lm, in fp32.

They are real mlx-lm architectures with seeded weights, scaled so that the next token depends on
the whole context (an untrained model's own weights give nearly constant output, which would hide a
wrongly restored state). `build` makes one in the process, `write_folder` writes one as a folder
that mlx-lm's loader reads, with a tokenizer and a chat template. For tests and for `mlxd bench`.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import ConcatenateKVCache, KVCache, RotatingKVCache

from mlx_backend.tiny_tokenizer import STOP_TOKENS, token_count, token_id, write_tokenizer

CONTEXT_SIZE = 65_536
WINDOW = 32


class UnknownCache(KVCache):  # type: ignore[misc]
    """A cache class that mlxd has never heard of, though it works."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """One kind. `make_caches` stands in for the architecture's own, for the given layer count."""

    config: Mapping[str, Any]
    make_caches: Callable[[int], list[Any]] | None = None
    gains: Mapping[str, float] = field(default_factory=dict)


_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": CONTEXT_SIZE,
    "tie_word_embeddings": False,
}
_LLAMA = {"model_type": "llama", "num_hidden_layers": 3, **_SIZES}


def _keeping_ring() -> Any:
    return RotatingKVCache(max_size=WINDOW, keep=4)


KINDS: Mapping[str, TinyModel] = {
    "tiny-full": TinyModel({"model_type": "qwen3", "num_hidden_layers": 3, **_SIZES}),
    "tiny-sliding": TinyModel(
        {
            **_SIZES,
            "model_type": "gemma3_text",
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 32,
        },
        gains={"embed_tokens": 0.125},
    ),
    "tiny-hybrid": TinyModel(
        {
            **_SIZES,
            "model_type": "qwen3_next",
            "num_hidden_layers": 4,
            "full_attention_interval": 4,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "num_experts": 0,
            "num_experts_per_tok": 1,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 32,
            "moe_intermediate_size": 32,
            "mlp_only_layers": [],
            "partial_rotary_factor": 0.5,
        }
    ),
    "llama": TinyModel(_LLAMA),
    "gpt-oss": TinyModel(
        {
            **_SIZES,
            "model_type": "gpt_oss",
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        }
    ),
    "mamba2": TinyModel(
        {
            "model_type": "mamba2",
            "num_heads": 8,
            "head_dim": 16,
            "hidden_size": 64,
            "intermediate_size": 128,
            "state_size": 16,
            "num_hidden_layers": 3,
            "layer_norm_epsilon": 1e-5,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "tie_word_embeddings": False,
            "time_step_limit": [0.0, 100.0],
            "time_step_rank": "auto",
            "max_position_embeddings": CONTEXT_SIZE,
        }
    ),
    "llama4": TinyModel(
        {
            "model_type": "llama4",
            "text_config": {
                **_SIZES,
                "model_type": "llama4_text",
                "num_hidden_layers": 4,
                "attention_bias": False,
                "attention_chunk_size": WINDOW,
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 96,
                "num_experts_per_tok": 1,
                "num_local_experts": 2,
                "rope_scaling": None,
                "use_qk_norm": False,
            },
        }
    ),
    "falcon-h1": TinyModel(
        {
            **_SIZES,
            "model_type": "falcon_h1",
            "num_hidden_layers": 3,
            "mamba_d_ssm": 64,
            "mamba_d_head": 16,
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 16,
            "mlp_multipliers": [1.0, 1.0],
            "ssm_multipliers": [1.0] * 5,
        }
    ),
    "deepseek-v32": TinyModel(
        {
            **_SIZES,
            "model_type": "deepseek_v32",
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "index_head_dim": 32,
            "index_n_heads": 2,
            "index_topk": 64,
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 3,
            "rope_scaling": None,
        }
    ),
    "afm7": TinyModel(
        {
            "model_type": "afm7",
            "hidden_dim": 64,
            "num_layers": 4,
            "num_kv_reuse_layers": 1,
            "num_heads": 4,
            "num_kv_heads": 2,
            "max_position_embeddings": CONTEXT_SIZE,
        }
    ),
    "baichuan-m1": TinyModel(
        {
            **_SIZES,
            "model_type": "baichuan_m1",
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "sliding_window_layers": [0, 2],
            "conv_window": 2,
        }
    ),
    "longcat-ngram": TinyModel(
        {
            "model_type": "longcat_flash_ngram",
            "hidden_size": 64,
            "ffn_hidden_size": 96,
            "moe_topk": 1,
            "expert_ffn_hidden_size": 32,
            "n_routed_experts": 2,
            "zero_expert_num": 1,
            "num_layers": 2,
            "max_position_embeddings": CONTEXT_SIZE,
            "num_attention_heads": 4,
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "routed_scaling_factor": 1.0,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "mla_scale_q_lora": True,
            "mla_scale_kv_lora": True,
            "ngram_vocab_size_ratio": 2,
            "emb_neighbor_num": 3,
            "emb_split_num": 2,
        }
    ),
    "minimax-m3": TinyModel(
        {
            "model_type": "minimax_m3_vl",
            "text_config": {
                **_SIZES,
                "num_hidden_layers": 2,
                "dense_intermediate_size": 64,
                "shared_intermediate_size": 32,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "moe_layer_freq": [0, 1],
                "sparse_attention_config": {
                    "sparse_num_index_heads": 2,
                    "sparse_index_dim": 32,
                    "sparse_block_size": 8,
                    "sparse_topk_blocks": 3,
                    "sparse_local_block": 1,
                    "sparse_attention_freq": [0, 1],
                },
            },
        }
    ),
    "concatenating": TinyModel(_LLAMA, lambda count: [ConcatenateKVCache() for _ in range(count)]),
    "keeping-ring": TinyModel(_LLAMA, lambda count: [_keeping_ring() for _ in range(count)]),
    "idle-layer": TinyModel(_LLAMA, lambda count: [KVCache() for _ in range(count + 1)]),
    "unknown": TinyModel(_LLAMA, lambda count: [UnknownCache() for _ in range(count)]),
}
"""Kind to model. The first three are the ones that `mlxd bench` and the cases run on.

In `idle-layer` the last cache is never written, as in models whose layers share KV.
"""


def build(kind: str, *, seed: int = 0, vocabulary_size: int | None = None) -> Any:
    """The model of `kind` with weights drawn from `seed`, evaluated."""
    tiny = KINDS[kind]
    config = _config(tiny, vocabulary_size or token_count())
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = [
        (name, _drawn(name, array, tiny.gains, seed))
        for name, array in tree_flatten(model.parameters())
    ]
    if hasattr(model, "sanitize"):
        weights = list(model.sanitize(dict(weights)).items())
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    make_caches = tiny.make_caches
    if make_caches is not None:
        model.make_cache = lambda: make_caches(len(model.layers))
    return model


def write_folder(kind: str, path: Path, *, template: str = "thinking", seed: int = 0) -> Path:
    """Write the model of `kind` and its tokenizer to the folder `path`; returns `path`.

    `template` names one of `tiny_tokenizer.TEMPLATES`. Kinds with `make_caches` exist in the
    process only: a config cannot say which cache classes to use.
    """
    tiny = KINDS[kind]
    if tiny.make_caches is not None:
        raise ValueError(f"{kind} cannot be written: its caches are not in its config")
    path.mkdir(parents=True, exist_ok=True)
    stop_ids = [token_id(token) for token in STOP_TOKENS]
    config = {**_config(tiny, token_count()), "eos_token_id": stop_ids[0]}
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"eos_token_id": stop_ids})
    weights = dict(tree_flatten(build(kind, seed=seed).parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    write_tokenizer(path, template=template, context_size=CONTEXT_SIZE)
    return path


def _config(tiny: TinyModel, vocabulary_size: int) -> dict[str, Any]:
    config = {**tiny.config, "vocab_size": vocabulary_size}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], "vocab_size": vocabulary_size}
    return config


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _drawn(name: str, array: Any, gains: Mapping[str, float], seed: int) -> Any:
    """Weights for one parameter: matrices keep the scale of what they are applied to."""
    noise = np.random.default_rng([seed, crc32(name.encode())]).standard_normal(array.shape)
    part = name.rsplit(".", 2)[-2:]
    if part[-1] == "A_log":  # decay per token between e^-0.002 and e^-0.2: a memory of hundreds
        values = np.log(0.02) + noise
    elif part[-1] == "D":
        values = np.ones(array.shape)
    elif array.ndim == 1:
        values = 0.1 * noise + (1.0 if part[-1] == "weight" else 0.0)
    elif part[0] in ("embed_tokens", "embedding", "embeddings"):
        values = noise * gains.get("embed_tokens", 1.0)
    elif array.ndim == 0:
        return array
    else:
        fan_in = array.shape[1] if "conv" in name else array.shape[-1]
        values = noise * _gain(name) / math.sqrt(fan_in)
    return mx.array(values.astype(np.float32))


def _gain(name: str) -> float:
    """Above 1 where it lets context outweigh the last token's own embedding."""
    if "lm_head" in name or "o_proj" in name or "out_proj" in name:
        return 3.0
    return 1.5
