"""Tools that take one text instead of arguments. Pure.

The model sees a function of one string, `input`; its client gets that string alone, as it comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from daemon.chat import ToolSpec

INPUT = "input"
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_STRING = re.compile(r'(?:[^"\\]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_HIGH_SURROGATE = re.compile(r"(?:^|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$")


def free_text_tool(
    name: str, description: str | None, grammar: str | None = None, namespace: str | None = None
) -> ToolSpec:
    """`grammar`, which the text ought to follow, is told to the model but not enforced."""
    told = description
    if grammar:
        told = f"{description or ''}\n\nThe input has to follow this grammar:\n{grammar}".strip()
    return ToolSpec(name, told, SCHEMA, namespace, is_free_text=True)


def input_of(arguments: str) -> str:
    """The text in a whole call's arguments; the arguments themselves if there is none."""
    text = FreeText()
    return text.push(arguments) + text.finish()


class FreeText:
    """The text in a call's arguments, as their fragments come."""

    def __init__(self) -> None:
        self._seen = ""  # of the arguments, as far as nothing was said of them
        self._is_inside = self._is_over = False

    def push(self, fragment: str) -> str:
        """The text that is certain now."""
        if self._is_over:
            return ""
        self._seen += fragment
        if not self._is_inside:
            opening = _OPENING.match(self._seen)
            if opening is None:
                return ""
            self._is_inside = True
            self._seen = self._seen[opening.end() :]
        return self._certain()

    def _certain(self) -> str:
        match = _STRING.match(self._seen)
        end = match.end() if match is not None else 0
        if self._seen[end : end + 1] == '"':
            self._is_over = True
        elif half := _HIGH_SURROGATE.search(self._seen, 0, end):
            end = half.start(1)
        text, self._seen = self._seen[:end], self._seen[end:]
        return _unescaped(text)

    def finish(self) -> str:
        """What is left of arguments that had another form."""
        if self._is_inside:
            return ""
        try:
            value = json.loads(self._seen)
        except ValueError:
            return self._seen
        found = value.get(INPUT) if isinstance(value, dict) else None
        return found if isinstance(found, str) else self._seen


def _unescaped(text: str) -> str:
    decoded: str = json.loads(f'"{text}"', strict=False)
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
