"""How many tokens a model's context has, by its own config and by whoever starts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    "n_positions",
    "n_ctx",
)
_DEFAULT = 32_768
_NO_LIMIT = 10**9  # transformers writes 10^30 where a tokenizer has no limit


def context_size(
    config: Mapping[str, Any], tokenizer_limit: object, asked: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """The context to serve, `asked` being an upper bound; and what is to be said about it."""
    known, warnings = _known(config, tokenizer_limit)
    if asked is None or asked <= known:
        return asked or known, warnings
    return known, (
        *warnings,
        f"The model's context has {known} tokens; the {asked} that were asked for are cut to that.",
    )


def _known(config: Mapping[str, Any], tokenizer_limit: object) -> tuple[int, tuple[str, ...]]:
    """How many tokens the model was made for, and a warning if nothing says so."""
    for scope in (config, config.get("text_config") or {}):
        for name in _NAMES:
            size = scope.get(name)
            if isinstance(size, int) and size > 0:
                return _scaled(size, scope), ()
    if isinstance(tokenizer_limit, int) and 0 < tokenizer_limit < _NO_LIMIT:
        return tokenizer_limit, ()
    return _DEFAULT, (
        f"The model does not say how long its context is; taken as {_DEFAULT} tokens.",
    )


def _scaled(size: int, scope: Mapping[str, Any]) -> int:
    """The context size with rope scaling, where the config gives the size before it."""
    scaling = scope.get("rope_scaling") or scope.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return size
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if isinstance(original, int) and isinstance(factor, (int, float)):
        return max(size, int(original * factor))
    return size
