"""The ways in which Llama 3 and 4, and models that took after them, write calls.

`{"name": …, "parameters": {…}}` as the whole answer or behind `<|python_tag|>`, several with a
semicolon between; `[name(key=value)]` as the whole answer or within `<|python_start|>`;
`<function=name>{…}</function>`. What has no mark of its own is a call only if a tool is named.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.json_calls import read_call, read_calls
from mlx_backend.output.lark import calls as call_rules
from mlx_backend.output.lark import choice, json_value, literal, mark
from mlx_backend.output.python_calls import python_call_rules, read_python_calls
from mlx_backend.output.tape import Reading, Search, Tape

_TAG, _START, _END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_NAME_END = Search([">", "\n"])


class Llama(CallFormat):
    name = "llama"
    marks = (_TAG, _START, _END)
    opening_marks = (_TAG, _START)

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        self._tags = (spelled(_TAG), spelled(_START))
        self._end = spelled(_END)
        self.openings = (*self._tags, _FUNCTION)
        self.first_openings = ("{", "[")
        self.silent_marks = (self._end,)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        is_llama_3 = '"parameters": ' in template and '"name": ' in template
        return is_llama_3 or any(
            mark in template or mark in added_tokens for mark in (_TAG, _START)
        )

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        if (yield from tape.read_if(_FUNCTION)):
            yield from self._read_function(tape, calls)
            return
        yield from self._skip_tags(tape)
        yield from self._read_bare(tape, calls)

    def _skip_tags(self, tape: Tape) -> Reading[None]:
        yield from tape.skip_space()
        for tag in self._tags:
            yield from tape.read_if(tag)

    def _read_bare(self, tape: Tape, calls: Calls) -> Reading[None]:
        first = yield from tape.skip_space()
        if first == "{":
            yield from read_calls(tape, calls, is_bare=True)
            while (yield from tape.skip_space()) == ";":
                tape.take(1)
                yield from self._skip_tags(tape)
                yield from read_calls(tape, calls, is_bare=True)
        else:
            yield from read_python_calls(tape, calls, is_bare=True)
        yield from tape.read_if(self._end)

    def _read_function(self, tape: Tape, calls: Calls) -> Reading[None]:
        name, mark = yield from tape.read_until(_NAME_END)
        if mark != ">":
            raise NotACall
        yield from read_call(tape, calls, name.strip(), end=_FUNCTION_END)
        yield from tape.skip_space()
        yield from tape.read_if(_FUNCTION_END)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        rules = [
            call_rules("call", '"; "', may_repeat),
            f"call: {choice(f'call_{i}' for i in range(len(tools)))}",
        ]
        for i, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool.name)}, "parameters": '
            rules += [f'call_{i}: {literal(head)} arguments_{i} "}}"']
            rules += [f"arguments_{i}: {json_value(tool.schema)}"]
        return "\n".join(rules)


class PythonCalls(CallFormat):
    """`<|tool_call_start|>[name(key=value)]<|tool_call_end|>`, as LFM2 writes it."""

    name = "pythonic"
    marks = ("<|tool_call_start|>", "<|tool_call_end|>")
    opening_marks = ("<|tool_call_start|>",)

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        opening, self._closing = map(spelled, self.marks)
        self.openings = (opening,)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return any(mark in template or mark in added_tokens for mark in cls.marks)

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        tape.take(len(self.openings[0]))
        if (yield from tape.skip_space()) == "{":
            yield from read_calls(tape, calls, end=self._closing)
            return
        yield from read_python_calls(tape, calls)
        yield from tape.skip_space()
        yield from tape.read_if(self._closing)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        more = ' (", " call)*' if may_repeat else ""
        start = f'start: {mark(self.openings[0])} "[" call{more} "]" {mark(self._closing)}'
        return "\n".join([start, *python_call_rules(tools)])
