"""Where in a rendered prompt the ids of a remembered answer take the place of the template's words.

An answer was sampled behind the text of its prompt. Where a prompt begins with just that text, the
template has opened the answer as its generation tail did, and what it wrote from there up to the
end of the turn is what the sampled ids say. So a prompt consists of the ids of the last one, the
ids that were sampled, and what is new.

Nothing is put in where the template opens its history in another way, leaves a thought out that
has words, or writes other control tokens than were sampled. Of an answer that the client cut short,
or that is not written as it was sampled, as many whole tokens are put in as the template repeats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from mlx_backend.control import ControlTokens, Cut, content_of, place_of
from mlx_backend.messages import RenderedAs, TokenIds
from mlx_backend.recall import Told
from mlx_backend.remembered import Remembered
from mlx_backend.stop_ids import turn_marks
from mlx_backend.templates import Template
from mlx_backend.traits import TemplateTraits

_MOST_TAIL_CHARACTERS = 1024  # of a prompt's end, about which the next prompt may not agree


@dataclass(frozen=True, slots=True)
class Splice:
    """`ids` in place of the characters of a prompt from `start` to `end`."""

    start: int
    end: int
    answer: Remembered
    ids: TokenIds = field(compare=False)

    def __len__(self) -> int:
        return self.end - self.start


class TextDigest:
    """Digests of the first characters of a text, further and further on; on its way it keeps what
    a text can begin with that has `keep_at` characters in common with this one."""

    def __init__(self, characters: int = 0, state: Any = None, keep_at: int = 0) -> None:
        self._state = blake2b(digest_size=16) if state is None else state
        self._keep_at = keep_at
        self.characters = characters
        self.kept: TextDigest | None = None

    def of(self, text: str, characters: int) -> bytes:
        """The digest of `text[:characters]`; `text` begins as it did the last time."""
        if characters < self.characters:
            return TextDigest().of(text, characters)
        if self.characters <= self._keep_at <= characters:
            self._advance(text, self._keep_at)
            self.kept = TextDigest(self.characters, self._state.copy())
        self._advance(text, characters)
        return bytes(self._state.digest())

    def resumed(self, keep_at: int) -> TextDigest:
        return TextDigest(self.characters, self._state.copy(), keep_at)

    def _advance(self, text: str, characters: int) -> None:
        self._state.update(text[self.characters : characters].encode())
        self.characters = characters


@dataclass(frozen=True, slots=True)
class _Decision:
    """Which place an answer has, if any. Nothing from the character `until` on matters to it."""

    splice: Splice | None
    until: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The splices of a prompt, in order, and what the plan for the next one can begin with."""

    splices: tuple[Splice, ...]
    characters: int
    digest: bytes
    decisions: dict[tuple[Remembered, bool], _Decision]
    begun: TextDigest | None

    @property
    def nbytes(self) -> int:
        """What it keeps, the answers included."""
        return sum(200 + answer.nbytes for answer, _ in self.decisions)

    def rendered_as(self, history: int) -> RenderedAs:
        return RenderedAs(self.characters, self.digest, history)


class Splicer:
    """Finds the places of answers in what one template renders. Immutable.

    `marks` are the control tokens that the template writes in a turn of the assistant's, `closings`
    those that stand behind one; `bytes_of` gives what a token says. Where each call gets a turn of
    its own (`takes_several_calls`), an answer of several has no place as a whole.
    """

    def __init__(
        self,
        control: ControlTokens,
        marks: Iterable[int],
        closings: Iterable[int],
        bytes_of: Callable[[int], bytes],
        *,
        takes_several_calls: bool = True,
    ) -> None:
        self._control = control
        self._closings = frozenset(closings)
        self._marks = self._closings.union(marks)
        self._texts = {token.id: token.text.encode() for token in control.tokens}
        self._bytes_of = bytes_of
        self._most_calls = sys.maxsize if takes_several_calls else 1

    def plan(
        self, text: str, answers: Sequence[Told], before: Plan | None = None, shared: int = 0
    ) -> Plan:
        """The places of `answers` in `text`; `before` knows its first `shared` characters."""
        begun = None if before is None else before.begun
        if begun is None or begun.characters > shared:
            begun = TextDigest()
        digest = begun.resumed(max(0, len(text) - _MOST_TAIL_CHARACTERS))
        known = {} if before is None else before.decisions
        decisions: dict[tuple[Remembered, bool], _Decision] = {}
        splices: list[Splice] = []
        for told in answers:
            for answer in told.answers:
                key = (answer, told.is_whole)
                decision = known.get(key)
                if decision is None or decision.until > shared:
                    decision = self._decide(text, answer, digest, is_whole=told.is_whole)
                decisions[key] = decision
                end = splices[-1].end if splices else 0
                if decision.splice is not None and decision.splice.start >= end:
                    splices.append(decision.splice)
                    break
        whole = digest.of(text, len(text))
        return Plan(tuple(splices), len(text), whole, decisions, digest.kept)

    def _decide(
        self, text: str, answer: Remembered, digest: TextDigest, *, is_whole: bool
    ) -> _Decision:
        begin = answer.prompt.characters
        if begin > len(text) or digest.of(text, begin) != answer.prompt.digest:
            return _Decision(None, begin)
        marks = [token for token in answer.ids.tolist() if token in self._marks]
        inner: list[Cut] = []
        for cut in self._control.cuts(text, begin):
            place = len(inner)
            if not place and marks[:1] != [cut.id]:
                marks = marks[self._empty_thought(answer) :]
            if place < len(marks) and cut.id == marks[place]:
                inner.append(cut)
                continue
            is_one = len(answer.turn.calls) <= self._most_calls
            is_over = is_whole and is_one and place == len(marks)
            if is_over and self._is_closed(text[begin : cut.start], cut, answer):
                return _Decision(Splice(begin, cut.start, answer, answer.ids), cut.end)
            return _Decision(self._repeated(text, cut.start, answer, inner), cut.end)
        return _Decision(None, len(text) + 1)

    def _empty_thought(self, answer: Remembered) -> int:
        """How many marks of a thought without words the answer begins with. A template may leave
        them out of its history: they say nothing that would be hidden from the model by that."""
        if answer.turn.thought.strip():
            return 0
        found = []
        for token in answer.ids.tolist():
            if token in self._marks:
                found.append(token)
                if len(found) == 2:
                    return 2 if found[0] != found[1] else 0
            elif self._bytes_of(token).strip():
                return 0
        return 0

    def _is_closed(self, written: str, cut: Cut, answer: Remembered) -> bool:
        """Whether the turn ends with `cut`, and the thought is in it."""
        thought = self._control.as_content(answer.turn.thought.strip())
        return cut.id in self._closings and thought in written

    def _repeated(
        self, text: str, limit: int, answer: Remembered, inner: Sequence[Cut]
    ) -> Splice | None:
        """As many of the sampled tokens as the template repeats before `limit`, outer white space
        apart; `inner` are the control tokens on the way."""
        begin = answer.prompt.characters
        written = content_of(text[begin:limit]).encode()
        count, length = self._common(answer.ids.tolist(), written)
        if not count:
            return None
        end = place_of(text, begin, len(written[:length].decode()))
        if any(cut.start < end < cut.end for cut in inner):
            return None
        return Splice(begin, end, answer, answer.ids[:count])

    def _common(self, ids: Sequence[int], written: bytes) -> tuple[int, int]:
        """How many tokens say what is written, up to the end of a character, and its bytes."""
        count = length = 0
        at = len(written) - len(written.lstrip())
        is_begun = False
        for place, token in enumerate(ids, 1):
            said = self._texts.get(token) or self._bytes_of(token)
            if not is_begun:
                if said.isspace():
                    continue
                said, is_begun = said.lstrip(), True
            if not said or not written.startswith(said, at):
                break
            at += len(said)
            if at == len(written) or written[at] & 0xC0 != 0x80:
                count, length = place, at
        return count, length


def splicer_for(
    template: Template,
    traits: TemplateTraits,
    control: ControlTokens,
    bytes_of: Callable[[int], bytes],
) -> Splicer:
    """The splicer of what `template` renders."""
    marks, closings = turn_marks(template, control, shows_calls=traits.shows_tool_calls)
    return Splicer(
        control, marks, closings, bytes_of, takes_several_calls=traits.takes_several_calls
    )
