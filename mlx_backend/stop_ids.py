"""The ids that end an answer: everything that any of a model's files says does.

Tokenizer, generation config and config often disagree, and some name only the end of the text,
not the end of a turn; the template shows that one: the control token behind an assistant's text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mlx_backend.control import ControlTokens
from mlx_backend.errors import PromptRejected
from mlx_backend.templates import Template
from mlx_backend.traits import REASONING_FIELDS, Message

_NOW = datetime(2024, 1, 1)
_THOUGHT, _ANSWER = "pensiero", "risposta"
_USER: Message = {"role": "user", "content": "Hello"}
_NEXT: Message = {"role": "user", "content": "domanda"}
_THINKING = dict.fromkeys(REASONING_FIELDS, _THOUGHT)
_ARGUMENTS = {"chiave": _ANSWER}


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
    ending = _behind(_ANSWER, template, control, [_USER, _say(_ANSWER)])
    going_on = _behind(_ANSWER, template, control, [_USER, _say(_ANSWER), _NEXT])
    end = ending[-1:] if ending and ending[-1] in going_on else going_on[:1]
    inner: set[int] = set()
    for messages in ([_USER, _say(_ANSWER)], _call_and_result(_ARGUMENTS)):
        text = _rendered(template, [_USER, {**messages[1], **_THINKING}, *messages[2:]])
        thought, answer = text.find(_THOUGHT), text.find(_ANSWER)
        if 0 <= thought < answer:
            inner.update(_tokens(control.split(text[thought:answer]), control))
    return frozenset(end) - inner


def turn_marks(
    template: Template, control: ControlTokens, *, shows_calls: bool
) -> tuple[frozenset[int], frozenset[int]]:
    """The control tokens that the template writes within a turn of the assistant's, and those that
    stand behind one: behind a text or the arguments of a call, whatever follows.

    Where the template is not trusted with calls (`shows_calls`), it writes none of theirs.
    """
    within: set[int] = set()
    behind: set[int] = set()
    for role in ("user", "system"):
        following = [_USER, _say(_ANSWER), {**_NEXT, "role": role}]
        behind.update(_behind(_ANSWER, template, control, following)[:1])
    forms = (_ARGUMENTS, json.dumps(_ARGUMENTS)) if shows_calls else ()
    loops = [_call_and_result(arguments) for arguments in forms]
    for loop in loops:
        behind.update(_behind(_ANSWER, template, control, loop))
    for messages in ([_USER, _say(_ANSWER)], *loops):
        thinking = [_USER, {**messages[1], **_THINKING}, *messages[2:]]
        within.update(_behind(_USER["content"], template, control, thinking))
    return frozenset(within), frozenset(behind)


def _call_and_result(arguments: object) -> list[Message]:
    function = {"name": "funzione", "arguments": arguments}
    call = {"id": "a1b2c3d4e", "type": "function", "function": function}
    result = {"role": "tool", "content": _NEXT["content"], "tool_call_id": call["id"]}
    return [_USER, _say("", tool_calls=[call]), result]


def _behind(
    words: str, template: Template, control: ControlTokens, messages: list[Message]
) -> list[int]:
    """The control tokens between `words` and the last text."""
    text = _rendered(template, messages)
    place = text.find(words)
    if place < 0:
        return []
    end = text.find(_NEXT["content"], place)
    return _tokens(control.split(text[place : end if end >= 0 else None]), control)


def _rendered(template: Template, messages: list[Message]) -> str:
    try:
        return template.render(messages, [], {}, _NOW, generation=False)
    except PromptRejected:
        return ""


def _say(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def _tokens(parts: list[str], control: ControlTokens) -> list[int]:
    found = (control.id_of(cut) for cut in parts[1::2])
    return [token for token in found if token is not None]
