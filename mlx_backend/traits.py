"""What a chat template can take, found by trying it with a few words.

Templates refuse, hoist or silently drop what they were not written for: late system messages,
tool results, calls, text where they iterate over a mapping. Each trait is one short rendering,
once per model; `conversation` then carries in another form what the template would lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from mlx_backend.control import THINK_TAGS
from mlx_backend.errors import PromptRejected
from mlx_backend.templates import Template, mentions

Message: TypeAlias = dict[str, Any]

_NOW = datetime(2024, 1, 1)
_LONG_ID, _SHORT_ID = "call_0a1b2c3d4e5f", "a1b2c3d4e"  # Mistral's templates want nine letters
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What the template takes as it is. The defaults are those of a template that takes all.

    `reasoning_fields` are the message fields it reads reasoning from; `think_tags` the pair it
    writes or searches for; `opens_thinking`: its generation tail ends inside a think block.
    """

    takes_system: bool = True
    takes_late_system: bool = True
    takes_repeated_roles: bool = True
    takes_tool_role: bool = True
    takes_user_after_tool: bool = True
    shows_tool_calls: bool = True
    takes_several_calls: bool = True
    shows_tools: bool = True
    takes_argument_mapping: bool = True
    takes_argument_text: bool = True
    wants_short_call_ids: bool = False
    takes_text_with_thought_and_calls: bool = True
    reasoning_fields: tuple[str, ...] = ()
    think_tags: tuple[str, str] | None = None
    opens_thinking: bool = False


def find_traits(template: Template) -> TemplateTraits:
    """Try `template`. A template that refuses even a plain user message gets the defaults."""
    trial = _Trial(template)
    user, reply = _say("user", "uno"), _say("assistant", "due")
    tags = next((pair for pair in THINK_TAGS if pair[1] in template.source), None)
    wants_short, forms = trial.call_forms()
    loop = _call_and_result(
        _SHORT_ID if wants_short else _LONG_ID,
        {"chiave": "valore"} if "mapping" in forms else "chiave valore",
    )
    thinking = {**loop[1], "content": "testo", **dict.fromkeys(REASONING_FIELDS, "pensiero")}
    shows_calls = bool(forms)
    return TemplateTraits(
        takes_system=trial.shows([_say("system", "sys"), user], "sys", "uno"),
        takes_late_system=trial.shows(
            [user, reply, _say("system", "sys"), _say("user", "tre")], "due", "sys", "tre"
        )
        and trial.shows([user, _say("system", "sys"), reply], "uno", "sys", "due"),
        takes_repeated_roles=trial.shows([user, _say("user", "bis"), reply], "uno", "bis", "due"),
        takes_tool_role=shows_calls or trial.shows([user, reply, _result(), reply], "risultato"),
        takes_user_after_tool=not shows_calls
        or trial.shows([*loop[:3], _say("user", "poi")], "risultato", "poi"),
        shows_tool_calls=shows_calls,
        takes_several_calls=not shows_calls or trial.render(_twice(loop)) is not None,
        shows_tools=trial.shows([user], "attrezzo", tools=[_TOOL]),
        takes_argument_mapping="mapping" in forms or not shows_calls,
        takes_argument_text="text" in forms or not shows_calls,
        wants_short_call_ids=wants_short,
        takes_text_with_thought_and_calls=not shows_calls
        or trial.render([loop[0], thinking, loop[2]]) is not None,
        reasoning_fields=tuple(f for f in REASONING_FIELDS if mentions(template.source, f)),
        think_tags=tags,
        opens_thinking=tags is not None and trial.tail_opens(user, tags),
    )


class _Trial:
    def __init__(self, template: Template) -> None:
        self._template = template

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        generation: bool = False,
    ) -> str | None:
        try:
            return self._template.render(messages, tools, {}, _NOW, generation=generation)
        except PromptRejected:
            return None

    def shows(
        self, messages: Sequence[Message], *words: str, tools: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        """Whether every word appears, in this order."""
        rendered = self.render(messages, tools)
        if rendered is None:
            return False
        place = 0
        for word in words:
            place = rendered.find(word, place)
            if place < 0:
                return False
        return True

    def call_forms(self) -> tuple[bool, frozenset[str]]:
        """Whether only short call ids are taken, and the forms of arguments that are shown."""
        for call_id in (_LONG_ID, _SHORT_ID):
            forms = frozenset(
                form
                for form, arguments in (
                    ("mapping", {"chiave": "valore"}),
                    ("text", "chiave valore"),
                )
                if self.shows(_call_and_result(call_id, arguments), "funzione", "risultato")
                and self.shows(_call_and_result(call_id, arguments), "chiave", "valore")
            )
            if forms:
                return call_id == _SHORT_ID, forms
        return False, frozenset()

    def tail_opens(self, user: Message, tags: tuple[str, str]) -> bool:
        rendered = self.render([user], generation=True) or ""
        opened, closed = (rendered.rfind(tag) for tag in tags)
        return opened > closed


_TOOL = {
    "type": "function",
    "function": {
        "name": "attrezzo",
        "description": "attrezzo",
        "parameters": {
            "type": "object",
            "properties": {"chiave": {"type": "string", "description": "chiave"}},
            "required": ["chiave"],
        },
    },
}


def probe_tool() -> Mapping[str, Any]:
    """A tool with nothing unusual in it."""
    return _TOOL


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _result(call_id: str = _LONG_ID) -> Message:
    return {
        "role": "tool",
        "content": "risultato",
        "tool_call_id": call_id,
        "name": "funzione",
    }


def _twice(loop: Sequence[Message]) -> list[Message]:
    """The conversation with two calls in one message."""
    user, asking, answer, *rest = loop
    return [user, {**asking, "tool_calls": asking["tool_calls"] * 2}, answer, answer, *rest]


def _call_and_result(call_id: str, arguments: object) -> list[Message]:
    function = {"name": "funzione", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        _say("user", "uno"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        _result(call_id),
        _say("assistant", "due"),
    ]
