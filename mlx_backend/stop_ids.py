"""The ids that end an answer: everything that any of a model's files says does.

Tokenizer, generation config and config often disagree, and some name only the end of the text,
not the end of a turn; the template shows that one: the control token behind an assistant's text.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The control token with which the template ends an assistant's turn.

    It is the last one of a conversation that ends with an answer, or, if none is written there,
    what begins the next turn. A token that also stands between an assistant's thought and its
    answer, or before its call (as the end of a channel does), ends no turn.
    """
    ending = _behind_answer(template, control, [_USER, _say(_ANSWER)])
    going_on = _behind_answer(template, control, [_USER, _say(_ANSWER), _NEXT])
    end = ending[-1:] if ending and ending[-1] in going_on else going_on[:1]
    inner: set[int] = set()
    for reply in ([_say(_ANSWER)], [_say("", tool_calls=[_CALL]), _RESULT]):
        text = _rendered(template, [_USER, {**reply[0], **_THINKING}, *reply[1:]])
        thought, answer = text.find(_THOUGHT), text.find(_ANSWER)
        if 0 <= thought < answer:
            inner.update(_tokens(control.split(text[thought:answer]), control))
    return frozenset(end) - inner


def _behind_answer(
    template: Template, control: ControlTokens, messages: list[Message]
) -> list[int]:
    """The control tokens between the answer and the next message's text."""
    text = _rendered(template, messages)
    answer = text.find(_ANSWER)
    if answer < 0:
        return []
    following = text.find(_NEXT["content"], answer)
    return _tokens(control.split(text[answer : following if following >= 0 else None]), control)


def _rendered(template: Template, messages: list[Message]) -> str:
    try:
        return template.render(messages, [], {}, _NOW, generation=False)
    except PromptRejected:
        return ""


def _say(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


_USER: Message = {"role": "user", "content": "Hello"}
_NEXT: Message = {"role": "user", "content": "domanda"}
_THINKING = dict.fromkeys(REASONING_FIELDS, _THOUGHT)
_CALL = {
    "id": "a1b2c3d4e",
    "type": "function",
    "function": {"name": "funzione", "arguments": {"chiave": _ANSWER}},
}
_RESULT: Message = {"role": "tool", "content": "esito", "tool_call_id": "a1b2c3d4e"}


def _tokens(parts: list[str], control: ControlTokens) -> list[int]:
    found = (control.id_of(cut) for cut in parts[1::2])
    return [token for token in found if token is not None]
