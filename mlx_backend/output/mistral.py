"""`[TOOL_CALLS]`, and behind it a JSON list of calls, or `name[ARGS]{…}` for each."""

from __future__ import annotations

import re
from collections.abc import Collection

from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.json_calls import read_call, read_calls
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
