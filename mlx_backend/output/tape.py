"""The text of an answer as it comes, read once, from left to right.

A reader is a generator: it takes what is there and yields where it needs more. So it is written
as if the whole text were there, and nothing is ever looked at twice but the few characters that
may be the beginning of a mark.

A control token that the model sampled as one token stands in the text as MARK and its spelling:
so it is told apart from the same characters sampled one by one. MARK is a lone surrogate, which
no decoded text has; whatever leaves the pipeline leaves without it (`answer_pieces`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

MARK = "\udc00"
SPACE = " \n\r\t"

_Result = TypeVar("_Result")
Reading: TypeAlias = Generator[None, None, _Result]
"""Yields where it waits for more of the answer; returns its result."""


class OutputEnded(Exception):
    """The model ended its answer while a reader waited for more."""


class OutputCut(Exception):
    """The answer was cut short while a reader waited for more. Not for readers to catch."""


class Search:
    """Finds the first of several marks, also where it comes in parts. Immutable, shareable."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.marks = tuple(sorted({mark for mark in marks if mark}, key=lambda mark: -len(mark)))
        self.match: Callable[[str, int], re.Match[str] | None] = re.compile(
            "|".join(map(re.escape, self.marks)) or "(?!)"
        ).search
        self._first_characters = frozenset(mark[0] for mark in self.marks)
        self._beginnings = frozenset(
            mark[:length] for mark in self.marks for length in range(1, len(mark))
        )
        self._longest = max(map(len, self.marks), default=0)
        self._has_prefixes = not self._beginnings.isdisjoint(self.marks)

    def may_grow(self, text: str, start: int) -> bool:
        """Whether the mark at `start` may yet become a longer one that begins with it."""
        return self._has_prefixes and text[start : start + self._longest] in self._beginnings

    def held_from(self, text: str, start: int = 0) -> int:
        """Where the longest end of `text` begins that may yet become a mark; len(text) if none."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at] in self._first_characters and text[at:] in self._beginnings:
                return at
        return len(text)


class Tape:
    """What came of the answer and was not yet read: `text` from `at` on.

    Readers move `at` forwards, never back (but for `put_back`). What lies before it is gone with
    the next `push`, unless it is kept (`keep`, `kept`).
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_over = False
        self._is_cut = False
        self._kept: list[str] | None = None
        self._dropped = 0

    @property
    def position(self) -> int:
        """How many characters were read so far."""
        return self._dropped + self.at

    def push(self, text: str) -> None:
        self._drop_read()
        self.text += text

    def end(self, *, is_cut: bool) -> None:
        self.is_over = True
        self._is_cut = is_cut

    def _drop_read(self) -> None:
        if self._kept is not None and self.at:
            self._kept.append(self.text[: self.at])
        self._dropped += self.at
        self.text = self.text[self.at :]
        self.at = 0

    def keep(self) -> None:
        """Remember what is read from here on."""
        self._drop_read()
        self._kept = []

    def kept(self) -> str:
        """What was read since `keep`, which ends with this."""
        self._drop_read()
        kept, self._kept = self._kept or [], None
        return "".join(kept)

    @property
    def is_empty(self) -> bool:
        """Everything that came was read."""
        return self.at >= len(self.text)

    def more(self) -> Reading[None]:
        """Wait for more. Raises OutputEnded."""
        if self._is_cut:
            raise OutputCut
        if self.is_over:
            raise OutputEnded
        yield

    def take(self, length: int) -> str:
        """Read `length` characters, which are there."""
        start, self.at = self.at, self.at + length
        return self.text[start : self.at]

    def take_all(self) -> str:
        """Read everything that is there."""
        return self.take(len(self.text) - self.at)

    def put_back(self, text: str) -> None:
        """Make what was read last unread again. For what only the answer's end can tell."""
        self.text = text + self.text[self.at :]
        self._dropped += self.at - len(text)
        self.at = 0

    def take_space(self) -> str:
        """Read what white space is here."""
        end = self.at
        while end < len(self.text) and self.text[end] in SPACE:
            end += 1
        return self.take(end - self.at)

    def take_before(self, search: Search) -> tuple[str, str | None]:
        """Read what certainly comes before any of the marks, without waiting.

        The mark is given if it stands at `at` now, unread; None: there is none so far, and what
        is unread may be the beginning of one. For values that are handed on as they come.
        """
        match = search.match(self.text, self.at)
        if match is not None:
            text = self.take(match.start() - self.at)
            is_certain = self.is_over or not search.may_grow(self.text, self.at)
            return text, match.group() if is_certain else None
        held = len(self.text) if self.is_over else search.held_from(self.text, self.at)
        return self.take(held - self.at), None

    def read_until(self, search: Search) -> Reading[tuple[str, str]]:
        """Wait for one of the marks; read it and what precedes it. Raises OutputEnded."""
        parts = []
        while True:
            text, mark = self.take_before(search)
            parts.append(text)
            if mark is not None:
                self.at += len(mark)
                return "".join(parts), mark
            yield from self.more()

    def read_while(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read all that `pattern` (of single characters, repeated) matches from here on."""
        parts = []
        while True:
            match = pattern.match(self.text, self.at)
            if match is not None:
                parts.append(self.take(match.end() - self.at))
            if not self.is_empty or (self.is_over and not self._is_cut):
                return "".join(parts)
            yield from self.more()

    def stands_here(self, mark: str) -> Reading[bool]:
        """Whether `mark` comes next. At the answer's end it does not."""
        while not self.text.startswith(mark, self.at):
            if not mark.startswith(self.text[self.at :]):
                return False
            if self.is_over and not self._is_cut:
                return False
            yield from self.more()
        return True

    def read_if(self, mark: str) -> Reading[bool]:
        """Whether `mark` comes next; then it is read. At the answer's end it does not."""
        is_here = yield from self.stands_here(mark)
        if is_here:
            self.at += len(mark)
        return is_here

    def skip_space(self) -> Reading[str]:
        """Read past white space; the next character, unread. "" at the answer's end."""
        while True:
            self.take_space()
            if not self.is_empty:
                return self.text[self.at]
            if self.is_over and not self._is_cut:
                return ""
            yield from self.more()
