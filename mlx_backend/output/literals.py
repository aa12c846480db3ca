"""Python and JSON literals as models write them, to JSON values, and never to anything else.

`ast` would do for the values, but it warns of a string's odd escapes (`"\\d"`) and evaluates more
than JSON has; calls in Python's own syntax also need the end of a literal inside other text.
Accepted beyond Python: `true`, `false` and `null`. Not accepted: names, sums, sets, bytes.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

LONGEST_NUMBER = 400  # characters
_MOST_NESTED = 60
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z]+")
_WORDS = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
    "null": None,
}
_QUOTE = re.compile(r"'''|\"\"\"|'|\"")
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-7]{1,3})|(\n)|(.))", re.DOTALL
)
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_ESCAPED = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "0": "\0",
    "\\": "\\",
    "'": "'",
    '"': '"',
}


def read_value(text: str) -> Any:
    """The one JSON or Python literal that `text` is. Raises ValueError."""
    text = text.strip()
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError:
        value, end = read_literal(text, 0)
        if end != len(text):
            raise ValueError(f"more text behind the literal at {end}") from None
        return value


def read_literal(text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """The literal that begins at `at`, and the offset behind it. Raises ValueError."""
    if depth > _MOST_NESTED or at >= len(text):
        raise ValueError(f"no literal at {at}")
    first = text[at]
    if first in "[(":
        return _read_list(text, at, depth)
    if first == "{":
        return _read_mapping(text, at, depth)
    if first in "'\"":
        return _read_string(text, at)
    if (number := _NUMBER.match(text, at)) is not None:
        return number_of(number[0]), number.end()
    word = _WORD.match(text, at)
    if word is None or word[0] not in _WORDS:
        raise ValueError(f"no literal at {at}")
    return _WORDS[word[0]], word.end()


def number_of(text: str) -> int | float:
    """A number's value; ValueError for one that JSON cannot write."""
    if len(text) > LONGEST_NUMBER:
        raise ValueError("a number of too many digits")
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def without_escapes(text: str) -> str:
    """The inside of a Python string literal as the characters that it means."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescaped, _SURROGATES.sub(_joined, text))


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match is not None else at


def _read_string(text: str, at: int) -> tuple[str, int]:
    parts = []
    while (quote := _QUOTE.match(text, at)) is not None:  # literals side by side are one
        end = _string_end(text, quote.end(), quote[0])
        parts.append(without_escapes(text[quote.end() : end]))
        after = end + len(quote[0])
        at = skip_space(text, after)
    return "".join(parts), after


def _string_end(text: str, at: int, quote: str) -> int:
    while (end := text.find(quote, at)) >= 0:
        if not is_escaped(text, end, at):
            return end
        at = end + 1
    raise ValueError("a string that does not end")


def is_escaped(text: str, at: int, start: int) -> bool:
    """Whether an odd number of backslashes stands before `at`, none counted before `start`."""
    before = text[start:at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _read_list(text: str, at: int, depth: int) -> tuple[Any, int]:
    close = "]" if text[at] == "[" else ")"
    items: list[Any] = []
    had_comma = False
    at = skip_space(text, at + 1)
    while not text.startswith(close, at):
        item, at = read_literal(text, at, depth + 1)
        items.append(item)
        at, had_comma = _behind_comma(text, at, close)
    if close == ")" and len(items) == 1 and not had_comma:
        return items[0], at + 1  # brackets around a value are no tuple
    return items, at + 1


def _read_mapping(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    at = skip_space(text, at + 1)
    while not text.startswith("}", at):
        key, at = read_literal(text, at, depth + 1)
        at = skip_space(text, at)
        if not text.startswith(":", at) or isinstance(key, list | dict):
            raise ValueError(f"no key and value at {at}")
        value, at = read_literal(text, skip_space(text, at + 1), depth + 1)
        items[key if isinstance(key, str) else json.dumps(key)] = value
        at, _ = _behind_comma(text, at, "}")
    return items, at + 1


def _behind_comma(text: str, at: int, close: str) -> tuple[int, bool]:
    at = skip_space(text, at)
    if text.startswith(",", at):
        return skip_space(text, at + 1), True
    if not text.startswith(close, at):
        raise ValueError(f"no comma and no {close} at {at}")
    return at, False


def _unescaped(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is not None or match[4] is not None:
        point = int(digits, 16) if digits is not None else int(match[4], 8)
        return chr(point) if point < 0x110000 and not 0xD800 <= point < 0xE000 else "\ufffd"
    if match[5] is not None:
        return ""
    return _ESCAPED.get(match[6], match[0])


def _joined(match: re.Match[str]) -> str:
    high, low = int(match[1], 16), int(match[2], 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
