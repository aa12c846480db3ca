"""Calls that are JSON objects: a name and arguments, in whatever keys and order they come."""

from __future__ import annotations

import json

from mlx_backend.output.call_format import Calls, NotACall
from mlx_backend.output.json_reader import Add, JsonReader, read_string, read_text
from mlx_backend.output.tape import OutputEnded, Reading, Tape

_NAME_KEYS = frozenset(["name", "function", "tool", "tool_name"])
_ARGUMENT_KEYS = frozenset(["arguments", "parameters", "args"])
_NO_JSON = "The model's call is not JSON"


def read_call(tape: Tape, calls: Calls, name: str, *, end: str = "") -> Reading[None]:
    """A call of `name`, whose arguments come next.

    `end` is a mark that ends them if closing brackets are left out.
    """
    first = yield from tape.skip_space()
    if not first:
        yield from tape.more()
    if first not in "{\"'":
        raise NotACall(f"{_NO_JSON}: its arguments are no object.")
    calls.start(name)
    yield from _read_object(tape, calls.add, end)
    calls.finish()


def _read_object(tape: Tape, add: Add, end: str) -> Reading[None]:
    if tape.text[tape.at] != "{":
        yield from _read_written_object(tape, add)
        return
    reader = JsonReader(tape, add, end=end)
    try:
        yield from reader.read()
    except OutputEnded:
        if not reader.close():
            raise


def _read_written_object(tape: Tape, add: Add) -> Reading[None]:
    """An object that was written once more, into a string."""
    inner = Tape()
    reading = _read_inner(inner, add)
    is_whole = is_begun = next(reading, inner) is inner
    failure: NotACall | None = None

    def push(portion: str) -> None:
        nonlocal is_whole, is_begun, failure
        if portion == '"' or is_whole or failure is not None:
            return
        is_begun = True
        inner.push(json.loads(f'"{portion}"'))
        try:
            is_whole = next(reading, inner) is inner
        except NotACall as error:
            failure = error  # told at the string's end, wherever its portions were cut

    yield from read_string(tape, push)
    if failure is not None:
        raise failure
    if is_begun and not is_whole:
        raise NotACall(f"{_NO_JSON}: its arguments are not whole.")


def _read_inner(tape: Tape, add: Add) -> Reading[None]:
    if (yield from tape.skip_space()) != "{":
        raise NotACall(f"{_NO_JSON}: its arguments are no object.")
    yield from JsonReader(tape, add).read()


class JsonCall:
    """Reads one object and tells the call that it is, as early as that is certain.

    `is_bare`: nothing but its keys says that it is a call. So with any other key, and with the
    name of no tool, it is text, and nobody is warned.
    """

    def __init__(self, tape: Tape, calls: Calls, *, end: str = "", is_bare: bool = False) -> None:
        self._tape = tape
        self._calls = calls
        self._end = end
        self._is_bare = is_bare
        self._name: str | None = None
        self._arguments: list[str] | None = None  # read before the name was known
        self._is_told = False
        self._depth = 0

    def read(self) -> Reading[None]:
        """The object stands at the tape."""
        self._tape.take(1)
        self._depth = 1
        while self._depth:
            character = yield from self._tape.skip_space()
            if character == "}":
                self._tape.take(1)
                self._depth -= 1
            elif character == ",":
                self._tape.take(1)
            elif character and character in "\"'":
                yield from self._read_member()
            else:
                yield from self._end_early()
        self._tell()

    def _end_early(self) -> Reading[None]:
        """The closing mark or the answer's end stands where more of the object should."""
        if self._is_told and (self._tape.is_over or (yield from self._stands_end())):
            self._depth = 0
            return
        if self._tape.is_empty:
            yield from self._tape.more()
        raise self._not_a_call(f"{_NO_JSON}.")

    def _stands_end(self) -> Reading[bool]:
        return bool(self._end) and (yield from self._tape.stands_here(self._end))

    def _read_member(self) -> Reading[None]:
        key = yield from read_text(self._tape)
        if (yield from self._tape.skip_space()) != ":":
            if self._tape.is_empty:
                yield from self._tape.more()
            raise self._not_a_call(f"{_NO_JSON}: a key without a colon.")
        self._tape.take(1)
        first = yield from self._tape.skip_space()
        if not first:
            yield from self._tape.more()
        if key in _ARGUMENT_KEYS and not self._is_told:
            yield from self._read_arguments(first)
        elif key in _NAME_KEYS and first in "\"'":
            self._take_name((yield from read_text(self._tape)))
        elif key == "function" and first == "{":
            self._tape.take(1)
            self._depth += 1
        else:
            self._pass_over(key)
            yield from JsonReader(self._tape, _ignore, end=self._end).read()

    def _take_name(self, name: str) -> None:
        if self._name is not None:
            return
        if self._is_bare and not any(tool.name == name for tool in self._calls.tools):
            raise NotACall
        self._name = name
        if self._arguments is not None:
            self._tell()

    def _pass_over(self, key: str) -> None:
        if self._is_bare and key not in ("type", "id"):
            raise NotACall

    def _read_arguments(self, first: str) -> Reading[None]:
        if first not in "{\"'n":
            raise self._not_a_call(f"{_NO_JSON}: its arguments are no object.")
        if first == "n":
            yield from JsonReader(self._tape, _ignore, end=self._end).read()
            self._arguments = []
        elif self._name is None:
            self._arguments = []
            yield from _read_object(self._tape, self._arguments.append, self._end)
        else:
            yield from read_call(self._tape, self._calls, self._name, end=self._end)
            self._is_told = True

    def _tell(self) -> None:
        """What was held back until the name was known."""
        if self._is_told:
            return
        if self._name is None:
            raise self._not_a_call("The model's call names no tool.")
        self._calls.start(self._name)
        for part in self._arguments or ():
            self._calls.add(part)
        self._calls.finish()
        self._is_told = True

    def _not_a_call(self, why: str) -> NotACall:
        return NotACall("" if self._is_bare and not self._is_told else why)


def _ignore(_: str) -> None:
    pass


def read_calls(tape: Tape, calls: Calls, *, end: str = "", is_bare: bool = False) -> Reading[None]:
    """Objects behind an opening mark: one, several, or a list of them; and the mark `end`, if it
    stands behind them.
    """
    yield from tape.skip_space()
    is_list = yield from tape.read_if("[")
    is_begun = False
    while True:
        character = yield from tape.skip_space()
        if character == "{":
            yield from JsonCall(tape, calls, end=end, is_bare=is_bare).read()
            tape.keep()  # its closing brackets are no part of what follows
            is_begun = True
        elif character and is_list and character in ",]":
            tape.take(1)
            is_list = character == ","
        elif character == "}" and is_begun:  # one too many
            tape.take(1)
        elif is_begun:
            if end:
                yield from tape.read_if(end)
            return
        elif character:
            raise NotACall("" if is_bare else f"{_NO_JSON}.")
        else:
            yield from tape.more()
