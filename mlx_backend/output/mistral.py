"""`[TOOL_CALLS]`, and behind it a JSON list of calls, or `name[ARGS]{…}` for each."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.json_calls import read_call, read_calls
from mlx_backend.output.lark import calls as call_rules
from mlx_backend.output.lark import choice, json_value, literal, mark
from mlx_backend.output.tape import OutputEnded, Reading, Tape

_OPENING, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[\w.:/-]*")


class Mistral(CallFormat):
    """Some write `[CALL_ID]` and an id between name and arguments. It is passed over: the daemon
    gives its calls ids of its own."""

    name = "mistral"
    marks = (_OPENING, _ARGUMENTS, _ID)
    opening_marks = (_OPENING,)

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        self.openings = (spelled(_OPENING),)
        self._arguments = spelled(_ARGUMENTS)
        self._id = spelled(_ID)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return _OPENING in template or _OPENING in added_tokens

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        tape.take(len(self.openings[0]))
        if (yield from tape.skip_space()) in ("[", "{"):
            yield from read_calls(tape, calls)
            return
        yield from self._read_named(tape, calls, NotACall("The model's call has no arguments."))
        while (yield from self._stands_name(tape)):
            yield from self._read_named(tape, calls, NotACall())

    def _stands_name(self, tape: Tape) -> Reading[bool]:
        character = yield from tape.skip_space()
        return bool(_NAME.fullmatch(character)) if character else False

    def _read_named(self, tape: Tape, calls: Calls, otherwise: NotACall) -> Reading[None]:
        """One call; where no arguments follow the name it is text, and `otherwise` says so."""
        try:
            name = yield from tape.read_while(_NAME)
            yield from tape.skip_space()
            if (yield from tape.read_if(self._id)):
                yield from tape.read_while(_NAME)
            if not name or not (yield from tape.read_if(self._arguments)):
                raise otherwise
        except OutputEnded:
            raise otherwise from None
        yield from read_call(tape, calls, name)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        """As the vocabulary has it: with `[ARGS]`, or a list."""
        opening = mark(self.spelled(_OPENING))
        one = choice(f"call_{i}" for i in range(len(tools)))
        if _ARGUMENTS in self.spelled.tokens:
            rules = [call_rules("call", "", may_repeat), f"call: {opening} ({one})"]
        else:
            more = ' (", " call)*' if may_repeat else ""
            rules = [f'start: {opening} "[" call{more} "]"', f"call: {one}"]
        for i, tool in enumerate(tools):
            rules += [f"call_{i}: {self._written(tool, f'arguments_{i}')}"]
            rules += [f"arguments_{i}: {json_value(tool.schema)}"]
        return "\n".join(rules)

    def _written(self, tool: CallableTool, arguments: str) -> str:
        if _ARGUMENTS in self.spelled.tokens:
            return f"{literal(tool.name)} {mark(self._arguments)} {arguments}"
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        return f'{literal(head)} {arguments} "}}"'
