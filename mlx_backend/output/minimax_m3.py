"""MiniMax M3's calls: elements named after the arguments, lists and mappings nested in them.

Before every tag stands a token of its own, so no value can hold one: its end leaves no doubt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mlx_backend.output.argument_types import LEFT_OUT, ArgumentTypes, value_of
from mlx_backend.output.argument_writer import ArgumentWriter
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.chains import SPACE, Chain, Until, read_one_of, take_end
from mlx_backend.output.lark import part_of
from mlx_backend.output.tagged import attribute
from mlx_backend.output.tape import MARK, OutputEnded, Reading, Search, Tape

_MOST_NESTED = 60
_ITEM = "item"


class MiniMaxM3Format(CallFormat):
    """`]<]minimax[>[<tool_call>⏎]<]minimax[>[<invoke name="f">]<]minimax[>[<k>v]<]minimax[>[</k>…`,
    several invocations in one block; the items of a list are elements named `item`."""

    name = "minimax-m3"
    marks = ("]<]minimax[>[", "<mm:think>", "</mm:think>")

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        self._mark, *thought = map(spelled, self.marks)
        self.openings = (f"{self._mark}<tool_call>",)
        self.think_tags = ((thought[0], thought[1]),)
        self._marks = Search((self._mark,))
        self._head: Chain = (SPACE, f"{self._mark}<invoke", Until(">"))
        self._call_end: Chain = (SPACE, f"{self._mark}</invoke>")
        self._block_end: Chain = (SPACE, f"{self._mark}</tool_call>")
        self._element: Chain = (SPACE, f"{self._mark}<", Until(">"))

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return cls.marks[0] in template or cls.marks[0] in added_tokens

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        tape.take(len(self.openings[0]))
        yield from self._read_call(tape, calls)
        while not (yield from take_end(tape, self._block_end)):
            if (yield from read_one_of(tape, (self._head,))) is None:
                return
            tape.keep()
            yield from self._read_call(tape, calls)

    def _read_call(self, tape: Tape, calls: Calls) -> Reading[None]:
        head = yield from read_one_of(tape, (self._head,))
        if head is None:
            raise NotACall("What was begun as a call names no tool.")
        tape.at = head.end
        key = yield from self._read_next_key(tape)
        tool = calls.start(attribute(head.names[0], "name"))
        writer = ArgumentWriter(calls, tool)
        try:
            while key is not None:
                yield from self._read_argument(key, tool.schema or {}, tape, writer)
                key = yield from self._read_next_key(tape)
        except OutputEnded:
            if not writer.is_between_arguments:
                raise
            tape.take_all()
        writer.finish()

    def _read_next_key(self, tape: Tape) -> Reading[str | None]:
        """The next argument's, whose tag is read; None at the call's end, which is read too."""
        found = yield from read_one_of(tape, (self._call_end, self._element))
        if found is None or any(not name or name[0] == "/" for name in found.names):
            raise NotACall("Something else stands in a call where an argument or its end should.")
        tape.at = found.end
        return found.names[0] if found.names else None

    def _read_argument(
        self, key: str, schema: Mapping[str, Any], tape: Tape, writer: ArgumentWriter
    ) -> Reading[None]:
        if (yield from self._begins_element(key, tape)):
            writer.put(key, (yield from self._read_elements(key, schema, tape, 0)))
            return
        writer.begin(key)
        while True:
            text, mark = tape.take_before(self._marks)
            writer.push(text)
            if mark is not None:
                break
            yield from tape.more()
        yield from self._read_end(key, tape)
        writer.end()

    def _begins_element(self, key: str, tape: Tape) -> Reading[bool]:
        """Whether an element stands here, and not the end of `key`."""
        ways = ((SPACE, f"{self._mark}</"), self._element)
        found = yield from read_one_of(tape, ways)
        return found is not None and bool(found.names)

    def _read_elements(
        self, key: str, schema: Mapping[str, Any], tape: Tape, depth: int
    ) -> Reading[Any]:
        """The list or mapping in `key`, up to and with its end."""
        if depth > _MOST_NESTED:
            raise NotACall("The arguments of the model's call are nested too deeply.")
        members: list[tuple[str, Any]] = []
        inner = _inside(schema, key)
        while (yield from self._begins_element(key, tape)):
            name = yield from self._read_next_key(tape)
            assert name is not None
            value = yield from self._read_element(name, inner, tape, depth + 1)
            if value is not LEFT_OUT:
                members.append((name, value))
        yield from self._read_end(key, tape)
        is_list = all(name == _ITEM for name, _ in members)
        return [value for _, value in members] if is_list else dict(members)

    def _read_element(
        self, key: str, schema: Mapping[str, Any], tape: Tape, depth: int
    ) -> Reading[Any]:
        if (yield from self._begins_element(key, tape)):
            return (yield from self._read_elements(key, schema, tape, depth))
        parts, mark = [], None
        while mark is None:
            text, mark = tape.take_before(self._marks)
            parts.append(text)
            if mark is None:
                yield from tape.more()
        yield from self._read_end(key, tape)
        return value_of("".join(parts).replace(MARK, ""), ArgumentTypes(schema).of(key))

    def _read_end(self, key: str, tape: Tape) -> Reading[None]:
        if not (yield from take_end(tape, (SPACE, f"{self._mark}</{key}>"))):
            raise NotACall(f"The model's call does not end the argument {key[:64]!r}.")


def _inside(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The schema of what is in the argument `key`; a list's items are called `item`."""
    properties = schema.get("properties")
    part = part_of(schema, properties.get(key) if isinstance(properties, Mapping) else None)
    items = part.get("items")
    return part_of(part, {"properties": {_ITEM: items}}) if isinstance(items, Mapping) else part
