"""One call's arguments as JSON, from the texts that a model writes them in.

A string's characters are passed on as they come, from the moment on at which its argument cannot
be anything else; other values when they are whole.
"""

from __future__ import annotations

import json
from typing import Any

from mlx_backend.messages import CallableTool
from mlx_backend.output.argument_types import (
    LEFT_OUT,
    STRING,
    ArgumentTypes,
    Types,
    may_be_other_than_string,
    value_of,
)
from mlx_backend.output.call_format import Calls
from mlx_backend.output.json_reader import inside_string
from mlx_backend.output.tape import MARK


class ArgumentWriter:
    """Tells `calls`, in which `tool`'s call has started, its arguments one after the other."""

    def __init__(self, calls: Calls, tool: CallableTool) -> None:
        self.begun: set[str] = set()
        self._calls = calls
        self._has_members = False
        self._types = ArgumentTypes(tool.schema)
        self._key = ""
        self._of = STRING
        self._held: list[str] = []
        self._is_passed_on = False
        self._is_held = False
        self._is_open = False

    @property
    def is_between_arguments(self) -> bool:
        """There is one at least, and the last is whole."""
        return self._has_members and not self._is_open

    def begin(self, key: str, types: Types | None = None) -> None:
        """An argument's text begins. `types`: what the model said itself of its type, which the
        schema overrules."""
        self._key = key
        self.begun.add(key)
        self._is_open = True
        self._of = self._types.of(key, types)
        self._held = []
        self._is_passed_on = self._is_held = False
        self._decide("")

    def push(self, text: str) -> None:
        """More of the argument's text."""
        text = text.replace(MARK, "")
        if not text:
            return
        if self._is_passed_on:
            self._calls.add(inside_string(text))
        elif self._is_held:
            self._held.append(text)
        else:
            self._decide(text)

    def end(self) -> None:
        """The argument's text is whole."""
        self._is_open = False
        if self._is_passed_on:
            self._calls.add('"')
            return
        value = value_of("".join(self._held), self._of)
        if value is not LEFT_OUT:
            self.put(self._key, value)

    def put(self, key: str, value: Any) -> None:
        """An argument whose value is known."""
        self._calls.add(self._before(key) + as_json(value))

    def finish(self) -> None:
        """All arguments were told."""
        self._calls.add("}" if self._has_members else "{}")
        self._calls.finish()

    def _decide(self, text: str) -> None:
        """Whether the text can be passed on now, or has to be held until it is whole."""
        self._held.append(text)
        start = "".join(self._held)
        if not may_be_other_than_string(start, self._of):
            self._is_passed_on = True
            self._calls.add(self._before(self._key) + '"' + inside_string(start))
        elif "string" not in self._of or start.lstrip()[:1] in ("[", "{"):
            self._is_held = True

    def _before(self, key: str) -> str:
        opening = ", " if self._has_members else "{"
        self._has_members = True
        return f"{opening}{as_json(key)}: "


def as_json(value: Any) -> str:
    """`value` as JSON text in which no half of a character stands."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
