"""The rules between a request and the model that serves it: names, limits, sampling. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from daemon.api.json_body import refuse
from daemon.chat import SamplingWishes
from daemon.errors import ContextOverflow, NotFound
from mlx_backend.messages import ModelInfo, Sampling

DEFAULT_SAMPLING = Sampling(temperature=1.0)
"""Where request and model are silent: the API's own documented defaults."""

DEFAULT_MODEL_NAMES = frozenset({"", "default"})
VENDOR_NAME = re.compile(
    r"(anthropic/|openai/)?(claude|gpt(?!-oss)|chatgpt|codex|o[1-9])(-.+)?", re.IGNORECASE
)
"""Ids that agents have built in, for helper calls too: the loaded model answers for them."""

SEED_BITS = 63


def model_names(info: ModelInfo) -> tuple[str, ...]:
    """The ids of the loaded model, its public one first."""
    names = (info.name, info.path, PurePath(info.path).name)
    return tuple(dict.fromkeys(name for name in names if name))


def is_loaded(asked: str, info: ModelInfo) -> bool:
    """Whether `asked` is an id of the loaded model; a repository's owner may stand before it."""
    return asked in model_names(info) or PurePath(asked).name == info.name


def answering_name(asked: str | None, info: ModelInfo) -> str:
    """The model id to answer with: what was asked. Raises NotFound for an id of nothing here."""
    if asked is None or asked in DEFAULT_MODEL_NAMES:
        return asked or info.name
    if is_loaded(asked, info) or VENDOR_NAME.fullmatch(asked):
        return asked
    raise unknown_model(asked, info)


def unknown_model(asked: str, info: ModelInfo) -> NotFound:
    return NotFound(
        f"The model `{asked[:200]}` is not here. Known: `{info.name}`.",
        field="model",
        code="model_not_found",
    )


def answer_limit(asked: int | None, prompt: int, context: int, field: str) -> int:
    """How many tokens may be generated: what was asked, cut to what fits.

    Raises ContextOverflow, which names `field`, if not one does.
    """
    if prompt >= context:
        raise overflow(str(prompt), context, field)
    room = context - prompt
    return room if asked is None else min(asked, room)


def overflow(tokens: str, context: int, field: str) -> ContextOverflow:
    """In the words that agents look for; `tokens` is a number, or "more than" one."""
    return ContextOverflow(
        f"This model's maximum context length is {context} tokens. However, your messages "
        f"resulted in {tokens} tokens. Please shorten them.",
        field=field,
    )


def sampling_for(wishes: SamplingWishes, info: ModelInfo, fresh_seed: int) -> Sampling:
    """How to draw tokens: the client's wishes, over what the model's makers recommend, over the
    API's defaults; within the model's vocabulary."""
    for token, _ in wishes.logit_bias:
        if token >= info.vocabulary_size:
            raise refuse(
                ("logit_bias", str(token)),
                f"is outside the vocabulary of {info.vocabulary_size} tokens.",
            )
    seed = fresh_seed if wishes.seed is None else wishes.seed % 2**SEED_BITS
    given: dict[str, Any] = {
        "temperature": wishes.temperature,
        "top_p": None if wishes.top_p is None else max(wishes.top_p, 1e-6),
        "top_k": None if wishes.top_k is None else _top_k(wishes.top_k, info),
        "min_p": wishes.min_p,
        "presence_penalty": wishes.presence_penalty,
        "frequency_penalty": wishes.frequency_penalty,
        "repetition_penalty": wishes.repetition_penalty,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    defaults = info.default_sampling or DEFAULT_SAMPLING
    return replace(defaults, **chosen, seed=seed, logit_bias=wishes.logit_bias)


def _top_k(top_k: int, info: ModelInfo) -> int:
    """−1 is another word for 0, "all of them", and so is more than there are."""
    return top_k if 0 < top_k < info.vocabulary_size else 0
