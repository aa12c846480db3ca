"""OpenAI's chat messages to ours. Pure.

Messages keep their order and their place, so that a longer history renders to a longer prompt.
`developer` is another name for `system`. What content may be is `openai_parts`' to know.
"""

from __future__ import annotations

from typing import Any

from daemon.api.free_text import INPUT
from daemon.api.json_body import Body, Path, refuse
from daemon.api.openai_parts import parts_of
from daemon.chat import Message, ToolCall

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class CalledFunction(Body):
    name: str
    arguments: Any = None


class CalledCustom(Body):
    """A call whose tool takes one text."""

    name: str
    input: str = ""


class CallFields(Body):
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None

    def call(self, path: Path) -> ToolCall:
        if self.custom is not None:
            return ToolCall(self.id or "", self.custom.name, {INPUT: self.custom.input})
        return _call(self.id, self.function, path)


class MessageFields(Body):
    role: str
    content: Any = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallFields] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None

    def message(self, path: Path) -> Message:
        if self.role not in ROLES:
            raise refuse((*path, "role"), f"has to be one of {', '.join(ROLES)}.")
        return Message(
            role=ROLES[self.role],
            parts=parts_of(self.content, (*path, "content")),
            name=self.name,
            reasoning=self.reasoning_content or self.reasoning,
            tool_calls=self._calls(path),
            tool_call_id=self.tool_call_id,
        )

    def _calls(self, path: Path) -> tuple[ToolCall, ...]:
        calls = [
            call.call((*path, "tool_calls", index))
            for index, call in enumerate(self.tool_calls or ())
        ]
        if self.function_call is not None:
            calls.append(_call(None, self.function_call, (*path, "function_call")))
        return tuple(calls)


def _call(call_id: str | None, function: CalledFunction | None, path: Path) -> ToolCall:
    if function is None:
        raise refuse((*path, "function"), "is required.")
    arguments = "" if function.arguments is None else function.arguments
    if not isinstance(arguments, str | dict):
        raise refuse((*path, "function", "arguments"), "has to be a string or an object.")
    return ToolCall(call_id or "", function.name, arguments)
