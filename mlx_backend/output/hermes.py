"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen and Hermes write it.

Some of these models now and then leave out the marks. So an object that begins the answer's text,
has these keys and the name of a tool is a call too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import CallFormat, Calls, Spelling
from mlx_backend.output.json_calls import read_calls
from mlx_backend.output.lark import hermes_json
from mlx_backend.output.tape import Reading, Tape

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


class HermesJson(CallFormat):
    name = "hermes"
    marks = (_OPENING, _CLOSING)
    opening_marks = (_OPENING,)

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        self.openings = (spelled(_OPENING),)
        self.first_openings = ("{",)
        self._closing = spelled(_CLOSING)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return _OPENING in template or _OPENING in added_tokens

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        is_marked = yield from tape.read_if(self.openings[0])
        yield from read_calls(tape, calls, end=self._closing, is_bare=not is_marked)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        return hermes_json(self.spelled, tools, may_repeat)
