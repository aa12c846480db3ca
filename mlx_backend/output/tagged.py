"""Calls written as tags, with each argument's text raw between two of them.

The families differ in how their tags look (`Tags`), not in how they are read. Since values are
not escaped, a closing tag ends one only where what follows is markup too: another argument that
the call does not have yet, or the end of the call and of its block. A call that a value quotes
from its first tag to its last is that value's text.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_backend.messages import CallableTool
from mlx_backend.output.argument_types import Types
from mlx_backend.output.argument_writer import ArgumentWriter
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.chains import SPACE, Begun, Chain, Followed, follow, read_one_of, take_end
from mlx_backend.output.json_calls import read_calls
from mlx_backend.output.tagged_grammar import Writing
from mlx_backend.output.tape import OutputEnded, Reading, Search, Tape

_NAME = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_ATTRIBUTE = re.compile(r"""([\w.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family's tags look, as on the tape.

    call: before the arguments; from its one name `name_of` takes the tool's.
    argument: before a value; from its names `key_of` takes the key.
    value_end, call_end, block_end: closing tags; without a `call_end` the block has one call and
    ends with it, without a `block_end` the call is not in a block.
    is_framed: a newline stands at both sides of a value and is no part of it.
    """

    call: Chain
    argument: Chain
    value_end: str
    call_end: str = ""
    block_end: str = ""
    is_framed: bool = False


def plain_name(attributes: str) -> str:
    """A name with or without quotes, whatever comes behind it."""
    match = _NAME.match(attributes)
    return next((name for name in match.groups() if name is not None), "") if match else ""


def attribute(attributes: str, name: str) -> str:
    """What a tag says of `name`; "" if nothing."""
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1] == name:
            return found[2] or found[3] or found[4] or ""
    return ""


class TaggedFormat(CallFormat):
    """A family that writes so. Subclasses say how their tags look."""

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        self.tags = tags = self.tags_for(spelled)
        self._next_call: Chain = (SPACE, *tags.call)
        self._next_argument: Chain = (SPACE, *tags.argument)
        self._call_end: Chain = (SPACE, tags.call_end or tags.block_end)
        is_named = isinstance(tags.call[0], str)
        head: Chain = tags.call if is_named else (self.openings[0], *tags.call)
        self._quoted = tuple((*head, *rest) for rest in (self._next_argument, self._call_end))
        self._value_ends = self._find_value_ends(tags)
        self._call_marks = (str(head[0]), tags.call_end or tags.block_end)
        self._value_search = Search((*self._value_ends, *self._call_marks))

    @abstractmethod
    def tags_for(self, spelled: Spelling) -> Tags: ...

    def writing(self) -> Writing | None:
        """As the family's template has it; None: calls of this family cannot be enforced."""
        return None

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        writing = self.writing()
        return None if writing is None else writing.grammar(tools, may_repeat)

    def name_of(self, attributes: str) -> str:
        return plain_name(attributes)

    def key_of(self, attributes: Sequence[str]) -> tuple[str, Types | None]:
        """An argument's key, and its type where the tag says one."""
        return plain_name(attributes[0]), None

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        opening = next(mark for mark in self.openings if tape.text.startswith(mark, tape.at))
        if opening not in self.tags.call:  # the block's, which some models leave out
            tape.take(len(opening))
            if self.tags.block_end and (yield from tape.skip_space()) == "{":
                yield from read_calls(tape, calls, end=self.tags.block_end)
                return
        yield from self._read_call(tape, calls)
        if not self.tags.call_end or not self.tags.block_end:
            return
        while not (yield from take_end(tape, (SPACE, self.tags.block_end))):
            if (yield from read_one_of(tape, (self._next_call,))) is None:
                return
            tape.keep()  # what closed the call before is no part of this one
            yield from self._read_call(tape, calls)

    def _read_call(self, tape: Tape, calls: Calls) -> Reading[None]:
        head = yield from read_one_of(tape, (self._next_call,))
        if head is None:
            raise NotACall("What was begun as a call names no tool.")
        tape.at = head.end
        yield from self._read_arguments(self.name_of(head.names[0]), tape, calls)

    def _read_arguments(self, name: str, tape: Tape, calls: Calls) -> Reading[None]:
        """Read on from a call's head past its end."""
        found = yield from self._read_next(tape)
        writer = ArgumentWriter(calls, calls.start(name))
        while found.chain is self._next_argument:
            writer.begin(*self.key_of(found.names))
            yield from self._read_value(tape, writer)
            writer.end()
            try:
                found = yield from self._read_next(tape)
            except OutputEnded:
                if follow(tape.text, tape.at, self._call_end) is None:
                    raise
                tape.take_all()  # every value is whole: nothing is missing but closing tags
                break
        writer.finish()

    def _read_next(self, tape: Tape) -> Reading[Followed]:
        """Read on to the next argument's value, or past the call's end."""
        found = yield from read_one_of(tape, (self._next_argument, self._call_end))
        if found is None:
            raise NotACall("Something else stands in a call where an argument or its end should.")
        tape.at = found.end
        return found

    def _read_value(self, tape: Tape, writer: ArgumentWriter) -> Reading[None]:
        """Read a value up to and with its closing tag."""
        if self.tags.is_framed:
            yield from tape.read_if("\n")
        depth = 0  # calls that the value quotes and did not end yet
        while True:
            text, mark = tape.take_before(self._value_search)
            writer.push(text)
            if mark is None:
                yield from tape.more()
            elif mark == self._call_marks[0]:
                depth += yield from self._begins_call(tape)
                writer.push(tape.take(len(mark)))
            elif depth and mark.endswith(self._call_marks[1]):
                depth -= 1
                writer.push(tape.take(len(mark)))
            elif not (yield from self._ends_value(tape, mark, writer)):
                writer.push(tape.take(len(mark)))
            elif depth and (length := (yield from self._quoted_length(tape, depth))):
                writer.push(tape.take(length))
                depth = 0
            else:
                tape.take(self._value_ends[mark].length)
                return

    def _begins_call(self, tape: Tape) -> Reading[bool]:
        try:
            return (yield from read_one_of(tape, self._quoted)) is not None
        except OutputEnded:
            return False

    def _quoted_length(self, tape: Tape, depth: int) -> Reading[int]:
        """How far the value goes on from a tag that may end it or an argument that it quotes.

        As far as the first end of a value outside of quoted calls. If there is none in all of the
        answer, what was taken for a quoted call was but its beginning, and the value ends here: 0.
        """
        at = 0  # behind `tape.at`
        while True:
            match = self._value_search.match(tape.text, tape.at + at)
            way = None if match is None else self._follow(tape.text, match)
            if match is None or isinstance(way, Begun):
                held = self._value_search.held_from(tape.text, tape.at + at)
                at = (held if match is None else match.start()) - tape.at
                try:
                    yield from tape.more()
                except OutputEnded:
                    return 0
                continue
            if depth and match.group().endswith(self._call_marks[1]):
                depth -= 1
            elif way is not None and match.group() == self._call_marks[0]:
                depth += 1
            elif way is not None and not depth:
                return match.start() - tape.at
            at = match.end() - tape.at

    def _follow(self, text: str, match: re.Match[str]) -> Followed | Begun | None:
        is_head = match.group() == self._call_marks[0]
        end = self._value_ends.get(match.group(), _NO_END)
        chains = self._quoted if is_head else end.continuations
        ways = (follow(text, match.start(), chain) for chain in chains)
        return next((way for way in ways if way is not None), None)

    def _ends_value(self, tape: Tape, mark: str, writer: ArgumentWriter) -> Reading[bool]:
        """Whether the mark, which stands here, is followed by what may follow a value."""
        continuations = self._value_ends.get(mark, _NO_END).continuations
        try:
            found = yield from read_one_of(tape, continuations)
        except OutputEnded:
            return True
        return found is not None and not (
            found.names and self.key_of(found.names)[0] in writer.begun
        )

    def _find_value_ends(self, tags: Tags) -> dict[str, _ValueEnd]:
        behind: list[Chain] = [self._next_argument, *self._whole_ends(tags)]
        ends = {tags.value_end: _value_end(tags.value_end, behind)}
        if tags.is_framed:
            framed = "\n" + tags.value_end
            ends[framed] = _value_end(framed, behind)
        if tags.is_framed and tags.call_end:  # some models forget the last value's own tag
            chains = [("\n", *chain[1:]) for chain in self._whole_ends(tags)]
            ends["\n" + tags.call_end] = _ValueEnd(1, tuple(chains))
        return ends

    def _whole_ends(self, tags: Tags) -> list[Chain]:
        """What ends a call and cannot be a value: the call's own tag, and what may follow it."""
        if not tags.call_end or not tags.block_end:
            return [self._call_end]
        firsts = [link for link in tags.call[:1] if isinstance(link, str)]
        return [
            (*self._call_end, SPACE, mark) for mark in (tags.block_end, *firsts, *self.openings)
        ]


@dataclass(frozen=True, slots=True)
class _ValueEnd:
    """A tag that may end a value: with how many characters of it the value is over, and what has
    to stand there from the tag on."""

    length: int
    continuations: tuple[Chain, ...]


_NO_END = _ValueEnd(0, ())


def _value_end(mark: str, behind: Sequence[Chain]) -> _ValueEnd:
    return _ValueEnd(len(mark), tuple((mark, *chain) for chain in behind))
