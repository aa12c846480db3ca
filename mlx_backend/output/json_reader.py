"""JSON read as it comes and handed on as it comes: what is added up is valid JSON, if it ends.

Strings are followed as strings, so no mark in them is taken for one, and are handed on in whatever
portions they come. What models get wrong without leaving doubt is put right: raw control
characters and stray backslashes in strings, single quotes, bare keys, Python's words, commas too
many or too few, closing brackets left out. For the rest there is NotACall.

With `is_python` the same for the literals in a Python call: its escapes, triple quotes, tuples.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from mlx_backend.output.call_format import NotACall
from mlx_backend.output.tape import Reading, Tape

Add = Callable[[str], None]

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_BARE = re.compile(r"""[^\s,:;(){}\[\]<>"'`\udc00]*""")
_PLAIN = {quote: re.compile(rf"[^{quote}\"\\\x00-\x1f]+") for quote in "\"'"}
_LONGEST_NUMBER = 400  # characters: whoever parses more of them may refuse it
DEEPEST = 100
"""Arrays and objects in each other; parsers have limits of their own."""

_HEX = {"x": 2, "u": 4, "U": 8}
_JSON_ESCAPES = frozenset('"\\/bfnrt')
_PYTHON_ESCAPES = {"a": "\a", "v": "\v", "0": "\0"}
_CONSTANTS = {
    **dict.fromkeys(("true", "True", "TRUE"), "true"),
    **dict.fromkeys(("false", "False", "FALSE"), "false"),
    **dict.fromkeys(("null", "None", "NULL", "undefined", "nan", "NaN", "Infinity"), "null"),
}
_NOT_JSON = "The arguments of the model's call are not JSON"
_CLOSING = {"{": "}", "[": "]", "(": ")"}


def inside_string(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class JsonReader:
    """Reads one value from where the tape stands and tells it to `add`.

    `end`: a mark that ends the value wherever it stands outside of a string.
    """

    def __init__(self, tape: Tape, add: Add, *, end: str = "", is_python: bool = False) -> None:
        self._tape = tape
        self._add = add
        self._end = end
        self._is_python = is_python
        self._open: list[str] = []
        self._is_first = True
        self._lacks_value = True

    def read(self) -> Reading[None]:
        """Raises NotACall; OutputEnded where the answer ended and it is not certain what with."""
        yield from self._read_value()
        while self._open:
            yield from self._read_member()

    def close(self) -> bool:
        """After OutputEnded: closes what is open and says True, if no value is missing or cut."""
        if self._lacks_value:
            return False
        self._add("".join(_json_bracket(bracket) for bracket in reversed(self._open)))
        self._open.clear()
        return True

    def _read_value(self) -> Reading[None]:
        character = yield from self._tape.skip_space()
        if not character:
            yield from self._tape.more()
        if character in "\"'":
            yield from read_string(self._tape, self._add, is_python=self._is_python)
        elif character in "{[" or (character == "(" and self._is_python):
            if len(self._open) == DEEPEST:
                raise NotACall("The arguments of the model's call are nested too deeply.")
            self._tape.take(1)
            self._open.append(_CLOSING[character])
            self._add("{" if character == "{" else "[")
            self._is_first = self._lacks_value = True
            return
        else:
            self._add(_scalar((yield from self._read_bare())))
        self._lacks_value = False

    def _read_member(self) -> Reading[None]:
        """A comma, the next member, or the end of what was opened last."""
        at = self._tape.position
        character = yield from self._tape.skip_space()
        if not character:
            yield from self._tape.more()
        if character == ",":
            self._tape.take(1)
            self._lacks_value = True
            yield from self._read_behind_comma()
        elif character in "}])":
            self._close(self._tape.take(1))
        elif (yield from self._ends_here()):
            if not self.close():
                raise NotACall(f"{_NOT_JSON}: they end too early.")
        elif self._is_first or (self._tape.position > at and character in "\"'{["):
            yield from self._read_next()
        else:
            raise NotACall(f"{_NOT_JSON}.")

    def _read_behind_comma(self) -> Reading[None]:
        """A member, unless the comma was one too many."""
        character = yield from self._tape.skip_space()
        if not character:
            yield from self._tape.more()
        if character not in ",}])" and not (yield from self._ends_here()):
            yield from self._read_next()

    def _ends_here(self) -> Reading[bool]:
        return bool(self._end) and (yield from self._tape.stands_here(self._end))

    def _read_next(self) -> Reading[None]:
        if not self._is_first:
            self._add(", ")
        self._is_first, self._lacks_value = False, True
        if self._open[-1] == "}":
            yield from self._read_key()
        yield from self._read_value()

    def _read_key(self) -> Reading[None]:
        character = yield from self._tape.skip_space()
        if character in "\"'":
            yield from read_string(self._tape, self._add, is_python=self._is_python)
        else:
            self._add(_quoted((yield from self._read_bare())))
        if (yield from self._tape.skip_space()) != ":":
            raise NotACall(f"{_NOT_JSON}: a key without a colon.")
        self._tape.take(1)
        self._add(": ")

    def _read_bare(self) -> Reading[str]:
        word = yield from self._tape.read_while(_BARE)
        if not word:
            raise NotACall(f"{_NOT_JSON}.")
        return word

    def _close(self, bracket: str) -> None:
        """Ends what `bracket` ends, and what was opened in it and not closed."""
        if bracket not in self._open:
            return
        while True:
            closed = self._open.pop()
            self._add(_json_bracket(closed))
            self._is_first = self._lacks_value = False
            if closed == bracket:
                return


def _json_bracket(bracket: str) -> str:
    return "]" if bracket == ")" else bracket


def _scalar(word: str) -> str:
    """A bare word as JSON: a number, a constant, and otherwise a string."""
    if len(word) > _LONGEST_NUMBER:
        return _quoted(word)
    if _NUMBER.fullmatch(word):
        return word
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    try:
        return str(int(word))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    return json.dumps(number) if math.isfinite(number) else _quoted(word)


def _quoted(text: str) -> str:
    return f'"{inside_string(text)}"'


def read_text(tape: Tape) -> Reading[str]:
    """A string, whole, as the text that it means."""
    parts: list[str] = []
    yield from read_string(tape, parts.append)
    return str(json.loads("".join(parts)))


def read_string(tape: Tape, add: Add, *, is_python: bool = False) -> Reading[None]:
    """A string in quotes of either kind, told as JSON in portions that are whole in themselves."""
    quote = tape.text[tape.at]
    end = quote
    if is_python and (yield from tape.stands_here(quote * 3)):
        end = quote * 3
    tape.take(len(end))
    add('"')
    plain = _PLAIN[quote].match
    while True:
        if (match := plain(tape.text, tape.at)) is not None:
            add(tape.take(match.end() - tape.at))
        if tape.is_empty:
            yield from tape.more()
        elif (character := tape.text[tape.at]) == "\\":
            yield from _read_escape(tape, add, is_python=is_python)
        elif character == quote and (len(end) == 1 or (yield from tape.stands_here(end))):
            tape.take(len(end))
            add('"')
            return
        else:
            add(inside_string(tape.take(1)))


def _read_escape(tape: Tape, add: Add, *, is_python: bool) -> Reading[None]:
    """A backslash and what it escapes; one that escapes nothing stands for itself."""
    while len(tape.text) - tape.at < 2:
        yield from tape.more()
    kind = tape.text[tape.at + 1]
    if kind == "u" or (is_python and kind in _HEX):
        yield from _read_code(tape, add, kind)
    elif kind in _JSON_ESCAPES:
        add(tape.take(2))
    elif kind == "'":
        tape.take(2)
        add("'")
    elif is_python and kind in _PYTHON_ESCAPES:
        tape.take(2)
        add(inside_string(_PYTHON_ESCAPES[kind]))
    elif is_python and kind == "\n":
        tape.take(2)
    else:
        tape.take(1)
        add("\\\\")


def _read_code(tape: Tape, add: Add, kind: str) -> Reading[None]:
    code = yield from _peek_code(tape, 0, kind)
    if code is None:
        tape.take(1)
        add("\\\\")
        return
    length = 2 + _HEX[kind]
    if 0xD800 <= code < 0xDC00:
        low = yield from _peek_code(tape, length, "u")
        if low is not None and 0xDC00 <= low < 0xE000:
            add(tape.take(length + 6))
            return
    tape.take(length)
    is_character = not 0xD800 <= code < 0xE000 and code < 0x110000
    add(inside_string(chr(code)) if is_character else "\\ufffd")


def _peek_code(tape: Tape, offset: int, kind: str) -> Reading[int | None]:
    r"""The number of the escape `\u…` that stands `offset` characters ahead, if one does."""
    digits = _HEX[kind]
    for place in range(2 + digits):
        while len(tape.text) - tape.at <= offset + place:
            yield from tape.more()
        character = tape.text[tape.at + offset + place]
        wanted = ("\\", kind)[place] if place < 2 else "0123456789abcdefABCDEF"
        if character not in wanted:
            return None
    start = tape.at + offset + 2
    return int(tape.text[start : start + digits], 16)
