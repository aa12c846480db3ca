"""The rules between a request and the model that serves it: limits, sampling. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from daemon.api.json_body import Path, refuse
from daemon.chat import CallRule, ChatRequest, SamplingWishes
from daemon.errors import ContextOverflow
from daemon.generation import DEFAULT_SAMPLING
from mlx_backend.messages import CallableTool, Constraint, Effort, ModelInfo, Sampling

EFFORT_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")

SEED_BITS = 63

COLDEST = 1e-4
"""The lowest temperature that differs from 0."""

LEAST_PENALTY = 0.01
"""Of repetition: logits divided by less may leave the range of half-precision numbers."""

BANNED = -100.0
"""The bias of a token that is not to be drawn: the most that the API knows."""


def not_shown(kind: str) -> str:
    """What stands in a prompt for a part that is no text, as an image or a document."""
    return f"[{kind}: not shown, this model reads text only]"


def effort_of(path: Path, level: str | None, enabled: bool | None = None) -> Effort:
    """How much thinking is wanted; `level` also knows "none", whatever its field is called."""
    if level is None:
        return Effort(enabled)
    if level == "none":
        return Effort(thinking=False)
    if level not in EFFORT_LEVELS:
        raise refuse(path, f"has to be none or one of {', '.join(EFFORT_LEVELS)}.")
    wants = True if level != "minimal" else None
    return Effort(wants if enabled is None else enabled, level)


def answer_limit(asked: int | None, prompt: int, context: int, field: str) -> int:
    """How many tokens may be generated: what was asked, cut to what fits.

    Raises ContextOverflow, which names `field`, if not one does.
    """
    if prompt >= context:
        raise overflow(prompt, context, field)
    room = context - prompt
    return room if asked is None else min(asked, room)


def overflow(
    tokens: int, context: int, field: str, *, is_at_least: bool = False
) -> ContextOverflow:
    """In the words that agents look for; `is_at_least`: the prompt has more than `tokens`."""
    told = f"more than {tokens}" if is_at_least else str(tokens)
    return ContextOverflow(
        f"This model's maximum context length is {context} tokens. However, your messages "
        f"resulted in {told} tokens. Please shorten them.",
        field=field,
        tokens=tokens,
        maximum=context,
        is_at_least=is_at_least,
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
        "temperature": None if wishes.temperature is None else _temperature(wishes.temperature),
        "top_p": None if wishes.top_p is None else max(wishes.top_p, 1e-6),
        "top_k": None if wishes.top_k is None else _top_k(wishes.top_k, info),
        "min_p": wishes.min_p,
        "presence_penalty": wishes.presence_penalty,
        "frequency_penalty": wishes.frequency_penalty,
        "repetition_penalty": _repetition(wishes.repetition_penalty),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    defaults = info.default_sampling or DEFAULT_SAMPLING
    return replace(
        defaults,
        **chosen,
        seed=seed,
        logit_bias=wishes.logit_bias,
        alternatives=wishes.alternatives,
    )


def without(sampling: Sampling, tokens: Iterable[int]) -> Sampling:
    """The same, but `tokens` are not drawn, whatever the client said of them."""
    biases = {**dict(sampling.logit_bias), **dict.fromkeys(sorted(tokens), BANNED)}
    return replace(sampling, logit_bias=tuple(biases.items()))


def constraint_for(request: ChatRequest) -> Constraint | None:
    """What the answer has to look like, if the client wants it to look like anything.

    Raises BadRequest for a choice among tools that are not there. With a schema and tools of free
    choice it is one or the other; one tool that was chosen by name is called once.
    """
    choice = request.tool_choice
    chosen = _chosen(request)
    if choice.rule is CallRule.REQUIRED:
        may_repeat = choice.may_repeat and len(choice.names) != 1
        return Constraint(tools=chosen, may_repeat=may_repeat)
    if request.json_schema is None:
        return None
    tools = chosen if choice.rule is CallRule.AUTO else ()
    return Constraint(request.json_schema, tools, choice.may_repeat)


def callable_tools(request: ChatRequest) -> tuple[CallableTool, ...]:
    """The tools that the answer may call: those of the choice, all of them if it names none."""
    return () if request.tool_choice.rule is CallRule.NONE else _chosen(request)


def _chosen(request: ChatRequest) -> tuple[CallableTool, ...]:
    names, path = request.tool_choice.names, (request.fields.tool_choice,)
    if request.tool_choice.rule is CallRule.REQUIRED and not request.tools:
        raise refuse(path, "asks for a call, but there are no tools.")
    known = {tool.name: tool.callable for tool in request.tools}
    for name in names:
        if name not in known:
            raise refuse(path, f"names `{name[:200]}`, which is not among the tools.")
    return tuple(known[name] for name in names) if names else tuple(known.values())


def _temperature(temperature: float) -> float:
    """One that is too low to divide by is 0: either way the likeliest token is drawn."""
    return temperature if temperature >= COLDEST else 0.0


def _repetition(penalty: float | None) -> float | None:
    """One that is tiny makes what was said the likeliest token either way."""
    return None if penalty is None else max(penalty, LEAST_PENALTY)


def _top_k(top_k: int, info: ModelInfo) -> int:
    """−1 is another word for 0, "all of them", and so is more than there are."""
    return top_k if 0 < top_k < info.vocabulary_size else 0
