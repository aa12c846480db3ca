"""The ways in which the Gemma family writes calls.

`call:f{key:<|"|>text<|"|>,count:3,list:[…]}` between marks of a generation's own; a string's
delimiter is not escaped in it, so it ends one only where the value may end. Gemma 3 knows no calls;
the form that its makers show is Python's, in a fence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from mlx_backend.messages import CallableTool
from mlx_backend.output.argument_types import EVERY, STRING, value_of
from mlx_backend.output.argument_writer import ArgumentWriter
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.chains import SPACE, Chain, Until, Word, read_one_of, take_end
from mlx_backend.output.gemma_grammar import GemmaWriting
from mlx_backend.output.json_reader import read_text
from mlx_backend.output.lark import literal
from mlx_backend.output.python_calls import python_call_rules, read_python_calls
from mlx_backend.output.tape import MARK, OutputEnded, Reading, Search, Tape

_MOST_NESTED = 60
_BARE = re.compile(r"[^,:{}\[\]\n\udc00]*")


class GemmaFormat(CallFormat):
    """Gemma 4: `<|tool_call>call:f{key:<|"|>text<|"|>}<tool_call|>`, thoughts in a channel."""

    name = "gemma-4"
    marks: ClassVar[tuple[str, ...]] = (
        "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>",
    )  # fmt: skip
    opening_marks: ClassVar[tuple[str, ...]] = ("<|tool_call>",)

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        opening, self._closing, self._quote, *channel = map(spelled, self.marks)
        self.openings = (opening,)
        if channel:
            self.think_tags = ((f"{channel[0]}thought", channel[1]),)
        self._quotes = Search((self._quote,))
        self._head: Chain = (SPACE, "call:", Until("{"))
        self._argument_ends: tuple[Chain, ...] = (
            (self._quote, SPACE, ",", SPACE, Word(":"), ":"),
            (self._quote, SPACE, "}", SPACE, self._closing),
            (self._quote, SPACE, "}", *self._head),
        )
        self._string_ends: tuple[Chain, ...] = tuple(
            (self._quote, SPACE, end) for end in (",", "}", "]")
        )

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        known = cls.marks[0] in template and cls.marks[1] in template
        return known or {cls.marks[0], cls.marks[1]} <= set(added_tokens)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        marks = (self.openings[0], self._closing, self._quote)
        return GemmaWriting(self.spelled.tokens, *marks).grammar(tools, may_repeat)

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        tape.take(len(self.openings[0]))
        yield from self._read_call(tape, calls)
        while not (yield from take_end(tape, (SPACE, self._closing))):
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
        writer = ArgumentWriter(calls, calls.start(head.names[0].strip()))
        try:
            while key is not None:
                yield from self._read_argument(key, tape, writer)
                key = yield from self._read_next_key(tape)
        except OutputEnded:
            if not writer.is_between_arguments:
                raise
            tape.take_all()
        writer.finish()

    def _read_next_key(self, tape: Tape) -> Reading[str | None]:
        return None if (yield from self._is_over(tape, "}")) else (yield from self._read_key(tape))

    def _read_argument(self, key: str, tape: Tape, writer: ArgumentWriter) -> Reading[None]:
        first = yield from _next(tape)
        if first in "{[":
            writer.put(key, (yield from self._read_container(tape, 0)))
        elif (yield from tape.read_if(self._quote)):
            writer.begin(key, STRING)
            yield from self._read_string(tape, writer, self._argument_ends)
            writer.end()
        else:
            is_quoted = first == '"'
            writer.begin(key, STRING if is_quoted else EVERY)
            writer.push((yield from (read_text(tape) if is_quoted else _read_bare(tape))))
            writer.end()

    def _read_string(
        self, tape: Tape, into: ArgumentWriter | _Text, ends: Sequence[Chain]
    ) -> Reading[None]:
        """A string's characters behind its first delimiter, up to and with the one that ends it."""
        while True:
            text, mark = tape.take_before(self._quotes)
            into.push(text)
            if mark is None:
                yield from tape.more()
            elif (yield from _stands_here(tape, ends)):
                tape.take(len(mark))
                return
            else:
                into.push(tape.take(len(mark)))

    def _read_key(self, tape: Tape) -> Reading[str]:
        if (yield from tape.read_if(self._quote)):
            text, _ = yield from tape.read_until(self._quotes)
        elif (yield from _next(tape)) == '"':
            text = yield from read_text(tape)
        else:
            text = yield from _read_bare(tape)
        yield from tape.skip_space()
        if not (yield from tape.read_if(":")):
            raise _not_readable()
        return text.replace(MARK, "")

    def _read_container(self, tape: Tape, depth: int) -> Reading[Any]:
        """A list or a mapping, whole."""
        if depth > _MOST_NESTED:
            raise _not_readable()
        if tape.take(1) == "[":
            items = []
            while not (yield from self._is_over(tape, "]")):
                items.append((yield from self._read_value(tape, depth)))
            return items
        members = {}
        while not (yield from self._is_over(tape, "}")):
            key = yield from self._read_key(tape)
            members[key] = yield from self._read_value(tape, depth)
        return members

    def _read_value(self, tape: Tape, depth: int) -> Reading[Any]:
        first = yield from _next(tape)
        if first in "{[":
            return (yield from self._read_container(tape, depth + 1))
        if (yield from tape.read_if(self._quote)):
            text = _Text()
            yield from self._read_string(tape, text, self._string_ends)
            return text.whole
        if first == '"':
            return (yield from read_text(tape))
        return value_of((yield from _read_bare(tape)), EVERY)

    def _is_over(self, tape: Tape, bracket: str) -> Reading[bool]:
        """Read past what separates members; whether the bracket that ends them came, too."""
        while (yield from _next(tape)) == ",":
            tape.take(1)
        return (yield from tape.read_if(bracket))


class FunctionGemmaFormat(GemmaFormat):
    """FunctionGemma: `<start_function_call>call:f{key:<escape>text<escape>}<end_function_call>`."""

    name = "function-gemma"
    marks = ("<start_function_call>", "<end_function_call>", "<escape>")
    opening_marks = ("<start_function_call>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return cls.marks[0] in template or cls.marks[0] in added_tokens


class ToolCodeFormat(CallFormat):
    """Gemma 3, where its template teaches calls: a fence of `tool_code` with Python's calls."""

    name = "tool-code"

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        self.openings = ("```tool_code\n",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "```tool_code" in template

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        tape.take(len(self.openings[0]))
        yield from read_python_calls(tape, calls, is_bare=True)
        while not (yield from take_end(tape, (SPACE, "```"))):
            yield from read_python_calls(tape, calls)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        more = r' ("\n" call)*' if may_repeat else ""
        fence, fence_end = literal(self.openings[0]), literal("\n```")
        start = f"start: {fence} call{more} {fence_end}"
        return "\n".join([start, *python_call_rules(tools)])


class _Text:
    """Characters that are collected until they are whole."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def push(self, text: str) -> None:
        self._parts.append(text)

    @property
    def whole(self) -> str:
        return "".join(self._parts).replace(MARK, "")


def _stands_here(tape: Tape, ends: Sequence[Chain]) -> Reading[bool]:
    try:
        return (yield from read_one_of(tape, ends)) is not None
    except OutputEnded:
        return True  # nothing is missing but what closes it


def _not_readable() -> NotACall:
    return NotACall("The arguments of the model's call are not in its own format.")


def _next(tape: Tape) -> Reading[str]:
    """The next character that is no white space, unread; waits for it."""
    while not (character := (yield from tape.skip_space())):
        yield from tape.more()
    return character


def _read_bare(tape: Tape) -> Reading[str]:
    """A word without delimiters."""
    word = yield from tape.read_while(_BARE)
    if not word.strip():
        raise _not_readable()
    return word.strip()


GEMMA_FORMATS: tuple[type[CallFormat], ...] = (GemmaFormat, FunctionGemmaFormat, ToolCodeFormat)
