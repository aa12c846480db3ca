"""The ids that end an answer: everything that any of a model's files says does.

Tokenizer, generation config and config often disagree, and some name only the end of the text,
not the end of a turn; the template shows that one: the control token behind an assistant's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from mlx_backend.control import ControlTokens
from mlx_backend.errors import PromptRejected
from mlx_backend.templates import Template
from mlx_backend.traits import REASONING_FIELDS, Message

_NOW = datetime(2024, 1, 1)
_THOUGHT, _ANSWER = "pensiero", "risposta"


def listed_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """`eos_token_id` of each config, which may be a number, a list or missing."""
    found: set[int] = set()
    for config in configs:
        for scope in (config, config.get("text_config") or {}):
            value = scope.get("eos_token_id")
            values = value if isinstance(value, list) else [value]
            found.update(token for token in values if isinstance(token, int))
    return frozenset(found)


def turn_end_ids(template: Template, control: ControlTokens) -> frozenset[int]:
    """What the template writes behind an assistant's last word, if it is a control token.

    A token that also stands between an assistant's thought and its answer, or before its call
    (as the end of a channel does), ends no turn.
    """
    ends = set()
    inner = set()
    for messages in _conversations():
        try:
            rendered = template.render(messages, [], {}, _NOW, generation=False)
        except PromptRejected:
            continue
        thought, answer = rendered.find(_THOUGHT), rendered.find(_ANSWER)
        if 0 <= thought < answer:
            inner.update(_tokens(control.split(rendered[thought:answer]), control))
        if answer >= 0:
            text, *rest = control.split(rendered[answer + len(_ANSWER) :])
            if rest and not text.strip():
                ends.update(_tokens(["", rest[0]], control))
    return frozenset(ends - inner)


def _conversations() -> Iterable[list[Message]]:
    """An answer in history; and a thought with an answer, or in arguments of a call, behind it."""
    user: Message = {"role": "user", "content": "Hello"}
    thought = dict.fromkeys(REASONING_FIELDS, _THOUGHT)
    function = {"name": "funzione", "arguments": {"chiave": _ANSWER}}
    call = {"id": "a1b2c3d4e", "type": "function", "function": function}
    result: Message = {"role": "tool", "content": "esito", "tool_call_id": "a1b2c3d4e"}
    yield [user, {"role": "assistant", "content": _ANSWER}, user]
    yield [user, {"role": "assistant", "content": _ANSWER, **thought}]
    yield [user, {"role": "assistant", "content": "", "tool_calls": [call], **thought}, result]


def _tokens(parts: list[str], control: ControlTokens) -> set[int]:
    found = (control.id_of(cut) for cut in parts[1::2])
    return {token for token in found if token is not None}
