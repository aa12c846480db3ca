"""Calls in Python's syntax: `[name(key=value, …), …]`, the values Python's or JSON's literals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import Calls, NotACall
from mlx_backend.output.json_reader import JsonReader, inside_string
from mlx_backend.output.lark import choice, json_value, literal, part_of
from mlx_backend.output.tape import OutputEnded, Reading, Tape

_NAME = re.compile(r"[\w.-]*")
_NO_CALL = "The model's call is not in Python's syntax"


def python_call_rules(tools: Sequence[CallableTool]) -> list[str]:
    """The Lark rule `call` and those that it needs: values as JSON, which is read here too."""
    rules = [f"call: {choice(f'call_{i}' for i in range(len(tools)))}"]
    for i, tool in enumerate(tools):
        needed, others, values = _argument_rules(f"argument_{i}", tool.schema or {})
        first, comma = ' ", " '.join(needed), literal(", ")
        more = "".join(f" ({comma} {rule})?" for rule in others)
        if not needed and others:
            any_other = f"({choice(others)})"
            first, more = f"({any_other} ({comma} {any_other})*)?", ""
        rules += [f'call_{i}: {literal(tool.name + "(")} {first}{more} ")"', *values]
    return rules


def _argument_rules(
    prefix: str, schema: Mapping[str, Any]
) -> tuple[list[str], list[str], list[str]]:
    """The names of the rules for arguments that are required and for the others, and them all."""
    named: tuple[list[str], list[str]] = ([], [])
    rules = []
    for i, (key, described) in enumerate((schema.get("properties") or {}).items()):
        rule = f"{prefix}_{i}"
        named[key not in (schema.get("required") or ())].append(rule)
        rules.append(f"{rule}: {literal(key + '=')} {rule}_value")
        rules.append(f"{rule}_value: {json_value(part_of(schema, described))}")
    return *named, rules


def read_python_calls(tape: Tape, calls: Calls, *, is_bare: bool = False) -> Reading[None]:
    """The list of calls that comes next, or one call without a list.

    `is_bare`: nothing but its form says that it is one, so what is not of it is text.
    """
    is_list = yield from tape.read_if("[")
    yield from _read_call(tape, calls, is_bare=is_bare)
    while is_list:
        character = yield from tape.skip_space()
        if not character:
            return
        if character not in ",]":
            raise NotACall(f"{_NO_CALL}.")
        tape.take(1)
        is_list = character == "," and (yield from tape.skip_space()) != "]"
        if is_list:
            yield from _read_call(tape, calls)


def _read_call(tape: Tape, calls: Calls, *, is_bare: bool = False) -> Reading[None]:
    yield from tape.skip_space()
    name = yield from tape.read_while(_NAME)
    yield from tape.skip_space()
    if not (yield from tape.read_if("(")):
        if tape.is_empty:
            yield from tape.more()
        raise NotACall("" if is_bare else f"{_NO_CALL}.")
    name = name.removesuffix(".call")  # as some write it
    if is_bare and not any(tool.name == name for tool in calls.tools):
        raise NotACall
    tool = calls.start(name)
    reader = _Arguments(tape, calls, tool)
    try:
        yield from reader.read()
    except OutputEnded:
        if not reader.can_end:
            raise
        calls.add("}")
    calls.finish()


class _Arguments:
    def __init__(self, tape: Tape, calls: Calls, tool: CallableTool) -> None:
        self._tape = tape
        self._calls = calls
        self._unnamed = _parameters(tool)
        self.can_end = False  # no value is missing

    def read(self) -> Reading[None]:
        """Up to and with the closing bracket."""
        before = "{"
        while True:
            character = yield from self._tape.skip_space()
            if not character:
                yield from self._tape.more()
            if character == ")":
                self._tape.take(1)
                self._calls.add("{}" if before == "{" else "}")
                return
            if character == ",":
                self._tape.take(1)
                continue
            self.can_end = False
            yield from self._read_one(before, character)
            self.can_end = True
            before = ", "

    def _read_one(self, before: str, first: str) -> Reading[None]:
        if first in "\"'[{(":
            key = self._next_unnamed()
        else:
            word = yield from self._tape.read_while(_NAME)
            yield from self._tape.skip_space()
            if not (yield from self._tape.read_if("=")):
                raise NotACall(f"{_NO_CALL}: an argument without a name.")
            key = word
        self._calls.add(f'{before}"{inside_string(key)}": ')
        yield from JsonReader(self._tape, self._calls.add, is_python=True).read()

    def _next_unnamed(self) -> str:
        key = next(self._unnamed, None)
        if key is None:
            raise NotACall(f"{_NO_CALL}: an argument without a name.")
        return key


def _parameters(tool: CallableTool) -> Iterator[str]:
    """What unnamed arguments are called: the schema's properties in their order."""
    properties = (tool.schema or {}).get("properties")
    return iter(properties if isinstance(properties, dict) else ())
