"""How a model's makers recommend to draw its tokens, from its generation_config.json. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlx_backend.messages import Sampling

_VALID: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: True,
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: value == int(value),
    "min_p": lambda value: value <= 1,
    "repetition_penalty": lambda value: 0 < value <= 10,
}
_TOO_MUCH = 1e9


def recommended_sampling(config: Mapping[str, Any], vocabulary_size: int) -> Sampling | None:
    """What `config` says of sampling; None if it says nothing. What is not valid is left out.

    `do_sample: false` means the likeliest token, whatever temperature stands beside it.
    """
    given: dict[str, Any] = {
        name: config[name] for name, is_valid in _VALID.items() if _is(config.get(name), is_valid)
    }
    if "top_k" in given:
        top_k = int(given["top_k"])
        given["top_k"] = top_k if top_k < vocabulary_size else 0
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    return Sampling(**{"temperature": 1.0, **given}) if given else None


def _is(value: object, is_valid: Callable[[float], bool]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value < _TOO_MUCH and is_valid(value)
