"""A client's history with the answers that are remembered put back in, as they were said.

Clients send an answer back in other bytes than it was sampled in: arguments written anew, outer
white space gone, the reasoning dropped, only the part that they saw before they hung up. Where a
message still means what was remembered, it gets the remembered fields, so that what the template
makes of it does not depend on who sends it; `splices` then puts the sampled ids in their place.
Where it means something else, it stays as the client wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, TypeAlias

from mlx_backend.digests import number_of
from mlx_backend.memo import Memo
from mlx_backend.messages import SampledCall, SampledTurn
from mlx_backend.remembered import Remembered, RememberedAnswers
from mlx_backend.traits import REASONING_FIELDS, Message

_Call: TypeAlias = tuple[str, str]
"""A call's name and its arguments in one spelling: equal for calls that mean the same."""

_MEMO_CHARACTERS = 8_000_000
_EXACT_FLOAT = 2**53


@dataclass(frozen=True, slots=True)
class Told:
    """The remembered answers of which a message may be one: they say the same, to whatever prompt.
    `is_whole`: the message means all that they say; else a part of it, or something like it."""

    answers: tuple[Remembered, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """A history as it is to be rendered, with what was found for its messages, in their order.
    `history` stands for all of its messages, whoever serialised them."""

    messages: Sequence[Mapping[str, Any]]
    answers: tuple[Told, ...]
    history: int


class Recall:
    """Finds messages that mean a remembered answer. Thread-safe."""

    def __init__(self, remembered: RememberedAnswers) -> None:
        self._remembered = remembered
        self._canonical: Memo[str, str] = Memo(_MEMO_CHARACTERS, lambda k, v: len(k) + len(v))

    def recalled(self, messages: Sequence[Mapping[str, Any]]) -> Recalled:
        said: list[Mapping[str, Any]] = []
        answers: list[Told] = []
        history = 0
        for message in messages:
            role = str(message.get("role"))
            calls = [self._call(call) for call in message.get("tool_calls") or ()]
            told = self._told(message, calls, history) if role == "assistant" else None
            if told is None:
                said.append(message)
            else:
                said.append(_as_said(message, told))
                answers.append(told)
            history = number_of(history, role, _text(message), *chain.from_iterable(calls))
        return Recalled(said, tuple(answers), history)

    def _told(
        self, message: Mapping[str, Any], calls: Sequence[_Call], history: int
    ) -> Told | None:
        first = message["tool_calls"][0].get("id") if calls else None
        candidates = self._remembered.called(str(first)) if calls else ()
        candidates = candidates or self._remembered.after(history)
        meant = [answer for answer in candidates if self._is_meant(message, calls, answer.turn)]
        if meant:
            alike = (answer for answer in meant if answer.turn == meant[0].turn)
            return Told(tuple(alike), is_whole=True)
        begun = [answer for answer in candidates if _is_begun(message, answer.turn)]
        return Told((begun[-1],), is_whole=False) if begun else None

    def _is_meant(
        self, message: Mapping[str, Any], calls: Sequence[_Call], turn: SampledTurn
    ) -> bool:
        """Equal text and calls, and the thought, if it is there at all."""
        if len(calls) != len(turn.calls):
            return False
        text = _text(message)
        if text != turn.text.strip() and not (calls and _reads_alike(text, turn.text)):
            return False
        thought = _thought(message)
        if thought is not None and not _reads_alike(thought, turn.thought):
            return False
        return all(
            name == call.name and arguments == self._json(call.arguments)
            for (name, arguments), call in zip(calls, turn.calls, strict=True)
        )

    def _call(self, call: Mapping[str, Any]) -> _Call:
        function = call.get("function") or call
        return str(function.get("name")), self._json(function.get("arguments"))

    def _json(self, arguments: object) -> str:
        """Arguments in one spelling; text that is no JSON stays as it is."""
        if not isinstance(arguments, str):
            try:
                arguments = json.dumps(arguments) if arguments else ""
            except (TypeError, ValueError, RecursionError):
                return repr(type(arguments))
        spelled = self._canonical.get(arguments)
        if spelled is None:
            spelled = _canonical(arguments)
            self._canonical.put(arguments, spelled)
        return spelled


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text or "{}", parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float | int:
    """Other languages write 3.0 as 3."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT else value


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def _thought(message: Mapping[str, Any]) -> str | None:
    found = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    return found if isinstance(found, str) else None


def _reads_alike(one: str, other: str) -> bool:
    """Equal but for white space: thoughts, and texts around calls, come back as several blocks."""
    return one.strip() == other.strip() or "".join(one.split()) == "".join(other.split())


def _is_begun(message: Mapping[str, Any], turn: SampledTurn) -> bool:
    """Whether a message is what a client saw of an answer that it cut short, perhaps with a word
    of its own behind it."""
    if not turn.is_cut or message.get("tool_calls"):
        return False
    text, said = _text(message), turn.text.strip()
    if not text:
        thought = (_thought(message) or "").strip()
        return bool(thought) and turn.thought.strip().startswith(thought)
    return bool(said) and (said.startswith(text) or text.startswith(said))


def _as_said(message: Mapping[str, Any], told: Told) -> Message:
    """The message with what the answer said; of one that was cut, with what the client saw."""
    turn = told.answers[0].turn
    said = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    text, thought = turn.text, turn.thought
    if not told.is_whole:
        seen, seen_thought = _text(message), _thought(message)
        text = _outer_blanks(text) + seen
        if not seen or (seen_thought and not _reads_alike(seen_thought, thought)):
            thought = seen_thought or ""
    said["content"] = text
    if thought:
        said["reasoning_content"] = thought
    if told.is_whole and turn.calls:
        pairs = zip(message["tool_calls"], turn.calls, strict=True)
        said["tool_calls"] = [_call_as_said(call, sampled) for call, sampled in pairs]
    return said


def _outer_blanks(text: str) -> str:
    return "".join(takewhile(str.isspace, text))


def _call_as_said(call: Mapping[str, Any], sampled: SampledCall) -> dict[str, Any]:
    function = {"name": sampled.name, "arguments": sampled.arguments}
    return {**call, "type": "function", "function": function}
