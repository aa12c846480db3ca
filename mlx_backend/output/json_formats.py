"""The families that write calls as JSON between two marks."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import CallFormat, Calls, Spelling
from mlx_backend.output.json_calls import read_calls
from mlx_backend.output.lark import choice, hermes_json, json_value, literal, mark
from mlx_backend.output.tape import Reading, Tape

_FENCES = ("```json\n", "```\n")
_FENCE_END = "```"


class MarkedJson(CallFormat):
    """`marks` begin with the opening and the closing one, between which stand one or more calls.

    Some of these models now and then leave them out, or write a fence of code in their place. So
    an object that begins the answer's text, has a call's keys and the name of a tool is a call too.
    """

    first_openings = ("{", *(f"{fence}{{" for fence in _FENCES))

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        opening, self.closing = map(spelled, self.marks[:2])
        self.openings = (opening,)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return cls.marks[0] in template or cls.marks[0] in added_tokens

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        if (yield from tape.read_if(self.openings[0])):
            yield from read_calls(tape, calls, end=self.closing)
            return
        for fence in _FENCES:
            if (yield from tape.read_if(fence)):
                yield from read_calls(tape, calls, end=_FENCE_END, is_bare=True)
                return
        yield from read_calls(tape, calls, end=self.closing, is_bare=True)


class HermesJson(MarkedJson):
    """Hermes, Qwen 2.5 and 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    name = "hermes"
    marks = ("<tool_call>", "</tool_call>")
    opening_marks = ("<tool_call>",)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        return hermes_json(self.spelled, tools, may_repeat)


class ListedJson(MarkedJson):
    """A list of calls between the marks. `call_head` is what stands before a call's arguments,
    with a place for the name as JSON has it."""

    call_head = '{{"name": {}, "arguments": '
    needs_closing = False

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        more = ' (", " call)*' if may_repeat else ""
        closing = mark(self.closing) if self.needs_closing else ""
        rules = [
            f'start: {mark(self.openings[0])} "[" call{more} "]" {closing}',
            f"call: {choice(f'call_{i}' for i in range(len(tools)))}",
        ]
        for i, tool in enumerate(tools):
            head = self.call_head.format(json.dumps(tool.name))
            rules += [f'call_{i}: {literal(head)} arguments_{i} "}}"']
            rules += [f"arguments_{i}: {json_value(tool.schema)}"]
        return "\n".join(rules)


class GraniteJson(ListedJson):
    """Granite 3, Phi 4: `<|tool_call|>[{"name": …, "arguments": {…}}]`; some close it."""

    name = "granite"
    marks = ("<|tool_call|>", "<|/tool_call|>")
    opening_marks = ("<|tool_call|>",)


class CommandJson(ListedJson):
    """Command R7B and A: `<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters":
    {…}}]<|END_ACTION|>`, with thoughts and text in marks of their own."""

    name = "command"
    marks = (
        "<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>",
        "<|START_RESPONSE|>", "<|END_RESPONSE|>",
    )  # fmt: skip
    opening_marks = ("<|START_ACTION|>",)
    call_head = '{{"tool_call_id": "0", "tool_name": {}, "parameters": '
    needs_closing = True

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        _, _, thought, thought_end, *response = map(spelled, self.marks)
        self.think_tags = ((thought, thought_end),)
        self.silent_marks = tuple(response)
