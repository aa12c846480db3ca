"""An answer's text taken apart into thoughts, text and calls, as nearly all families write it.

Text may hold thoughts and calls; a thought ends with its closing tag or with the answer, and what
looks like a call in it is thought. In code (a fence, backticks) text speaks about tags and marks:
there they are text. A fence that the answer never closes quotes nothing, though: models open one
out of habit and then call. What was begun as a call and is none becomes text again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_backend.control import THINK_TAGS
from mlx_backend.messages import AnswerForm
from mlx_backend.output.answer_pieces import AnswerPieces
from mlx_backend.output.call_format import CallFormat, NotACall, Spelling
from mlx_backend.output.quoting import Quoting
from mlx_backend.output.tape import MARK, SPACE, OutputCut, OutputEnded, Reading, Search, Tape


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """One way to write thoughts, as it stands on the tape. `is_own`: the model is known to use it;
    others count where text begins only, for models of which nothing is known."""

    opening: str
    closing: str
    is_own: bool = True


def find_think_tags(template: str, spelled: Spelling) -> tuple[ThinkTags, ...]:
    """How a model writes its thoughts, the ways that others have included."""
    return tuple(
        ThinkTags(
            spelled(opening),
            spelled(closing),
            not template or any(tag in template or tag in spelled.tokens for tag in pair),
        )
        for pair in THINK_TAGS
        for opening, closing in [pair]
    )


class Splitter:
    """One model's way to write answers. Immutable, shared by its answers."""

    def __init__(self, think_tags: Sequence[ThinkTags], calls: CallFormat | None = None) -> None:
        own = () if calls is None else calls.think_tags
        tags = [*(ThinkTags(*pair) for pair in own), *think_tags]
        known = [pair for pair in tags if pair.is_own]
        strays = [pair.closing for pair in known if pair.closing.startswith(MARK)]
        self.calls = calls
        self.openings = tuple(pair.opening for pair in known)
        foreign = () if own else (pair.opening for pair in tags if not pair.is_own)
        self.first_openings = tuple(foreign)
        self.silent_marks = frozenset([*strays, *(calls.silent_marks if calls else ())])
        self.closings = Search(pair.closing for pair in known or tags)
        self.closing_of = {pair.opening: Search([pair.closing]) for pair in tags}
        structure = [*self.openings, *self.silent_marks]
        self.marks = Search(structure)
        self.marks_and_calls = Search([*structure, *(calls.openings if calls else ())])

    def read(self, tape: Tape, answer: AnswerPieces, form: AnswerForm) -> Reading[None]:
        """Read a whole answer; returns where it ends."""
        reader = _AnswerReader(self, self.calls if form.tools else None, tape, answer)
        try:
            yield from reader.read(begins_in_thought=form.begins_in_thought)
        except (OutputEnded, OutputCut):
            reader.say_rest()
            answer.end()


class _AnswerReader:
    def __init__(
        self, model: Splitter, calls: CallFormat | None, tape: Tape, answer: AnswerPieces
    ) -> None:
        self._model = model
        self._calls = calls
        self._tape = tape
        self._answer = answer
        self._search = model.marks if calls is None else model.marks_and_calls
        self._first_marks = (*model.first_openings, *(calls.first_openings if calls else ()))
        self._quoting = Quoting()
        self._is_thinking = False
        self._is_first = True  # nothing but white space since the beginning, a thought or a call

    def read(self, *, begins_in_thought: bool) -> Reading[None]:
        """Ends by OutputEnded or OutputCut only."""
        if begins_in_thought:
            yield from self._read_first_thought()
        while True:
            if self._is_first and self._first_marks:
                yield from self._read_first_mark()
            yield from self._read_text()

    def say_rest(self) -> None:
        rest = self._tape.take_all()
        if self._is_thinking:
            self._answer.thought(rest)
        else:
            self._say(rest)

    def _say(self, text: str) -> None:
        if text:
            self._quoting.push(text)
            self._is_first = self._is_first and not text.strip(SPACE)
            self._answer.text(text)

    def _read_text(self) -> Reading[None]:
        """What text there is, and the thought or the call behind it."""
        text, mark = self._tape.take_before(self._search)
        self._say(text)
        if mark is None:
            yield from self._tape.more()
        elif mark in self._model.silent_marks:
            self._tape.take(len(mark))
        elif not self._quoting.is_open():
            yield from self._read_marked(mark)
        elif self._quoting.is_fenced and mark not in self._model.closing_of:
            yield from self._read_fenced(mark)
        else:
            self._say(self._tape.take(len(mark)))

    def _read_fenced(self, mark: str) -> Reading[None]:
        """What a fence holds from a call's mark on: text if it is closed, else a call.

        Nothing is said until that is known: by the line that closes it, or the answer's end.
        """
        held: list[str] = []
        try:
            is_quoted = yield from self._is_fence_closed(held)
        except OutputCut:
            self._answer.text("".join(held))
            raise
        if is_quoted:
            self._answer.text("".join(held))
        else:
            self._quoting = Quoting()
            self._tape.put_back("".join(held))
            yield from self._read_marked(mark)

    def _is_fence_closed(self, read: list[str]) -> Reading[bool]:
        """Read up to the end of the line that closes the fence, or to the answer's end."""
        while self._quoting.is_fenced:
            text, line_end = self._tape.take_before(_LINE_END)
            if text := text + self._tape.take(len(line_end or "")):
                read.append(text)
                self._quoting.push(text)
            else:
                try:
                    yield from self._tape.more()
                except OutputEnded:
                    return not self._quoting.is_open()
        return True

    def _read_first_mark(self) -> Reading[None]:
        """What counts only where text begins, if it stands here."""
        while (space := self._tape.take_space()) or self._tape.is_empty:
            self._say(space)
            if self._tape.is_empty:
                yield from self._tape.more()
        for mark in self._first_marks:
            if (yield from self._tape.stands_here(mark)):
                yield from self._read_marked(mark)
                return

    def _read_marked(self, mark: str) -> Reading[None]:
        if mark in self._model.closing_of:
            self._answer.end_text()
            self._tape.take(len(mark))
            yield from self._read_thought(self._model.closing_of[mark])
        else:
            yield from self._read_calls(mark)
        self._quoting.push("\n")

    def _read_first_thought(self) -> Reading[None]:
        """The thought that the prompt began; some models open it once more."""
        self._is_thinking = True
        yield from self._tape.skip_space()
        for opening in self._model.openings:
            if (yield from self._tape.read_if(opening)):
                break
        self._answer.end_text()
        yield from self._read_thought(self._model.closings)

    def _read_thought(self, closing: Search) -> Reading[None]:
        self._is_thinking = True
        while True:
            text, mark = self._tape.take_before(closing)
            self._answer.thought(text)
            if mark is not None:
                break
            yield from self._tape.more()
        self._tape.take(len(mark))
        self._answer.end_thought()
        self._is_thinking, self._is_first = False, True

    def _read_calls(self, mark: str) -> Reading[None]:
        assert self._calls is not None
        before = self._tape.position
        is_quiet = mark in self._calls.first_openings
        self._answer.open_block()
        try:
            yield from self._calls.read(self._tape, self._answer)
        except OutputCut:
            self._tape.take_all()
            self._say(self._answer.fail(_CUT, is_cut=True, is_quiet=is_quiet))
            raise
        except OutputEnded:
            self._tape.take_all()
            self._say(self._answer.fail(_ENDED, is_quiet=is_quiet))
        except NotACall as error:
            self._say(self._answer.fail(error.why))
            if self._tape.position == before:
                self._say(self._tape.take(len(mark)))
        else:
            self._answer.close_block()
            self._is_first = True


_LINE_END = Search(["\n"])
_CUT = "The answer was cut short in the middle of a tool call."
_ENDED = "The answer ended in the middle of a tool call."
