"""Harmony, as GPT-OSS writes it: messages in channels, each with a header.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f
<|constrain|>json<|message|>{…}<|call|>`. The prompt ends within the first header. Analysis is
thought, a message to a function is a call, all else is text; a call or a return ends the turn, and
whatever comes behind is nothing. Headers and marks never show, not even where they are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlx_backend.messages import AnswerForm, CallableTool
from mlx_backend.output.answer_pieces import AnswerPieces
from mlx_backend.output.call_format import NotACall, Spelling
from mlx_backend.output.json_calls import read_call
from mlx_backend.output.lark import harmony_calls
from mlx_backend.output.tape import MARK, OutputCut, OutputEnded, Reading, Search, Tape

START, END, MESSAGE, CHANNEL, CONSTRAIN, RETURN, CALL = MARKS = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAMES = ("commentary", "analysis", "final")
_LONGEST_HEADER = 500  # characters; what has more of them is no header


@dataclass(frozen=True, slots=True)
class _Header:
    is_thought: bool = False
    recipient: str | None = None


class Harmony:
    name = "harmony"
    marks = MARKS
    opening_marks: tuple[str, ...] = ()
    ending_marks = (RETURN, CALL)

    def __init__(self, spelled: Spelling) -> None:
        self.spelled = spelled
        self.mark_of = {spelled(mark): mark for mark in MARKS}
        self.all_marks = Search(self.mark_of)
        self.call_end = spelled(CALL)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return all(mark in template for mark in (START, CHANNEL, MESSAGE))

    def read(self, tape: Tape, answer: AnswerPieces, form: AnswerForm) -> Reading[None]:
        """Read a whole answer; returns where it ends."""
        reader = _MessageReader(self, tape, answer)
        try:
            yield from reader.read(begins_in_thought=form.begins_in_thought)
        except (OutputEnded, OutputCut):
            answer.end()
        while True:  # what is behind the end of the turn
            tape.take_all()
            yield

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        return harmony_calls(self.spelled, tools)


class _MessageReader:
    def __init__(self, model: Harmony, tape: Tape, answer: AnswerPieces) -> None:
        self._model = model
        self._tape = tape
        self._answer = answer
        self._has_text = False  # said right before, so that more of it needs a gap

    def read(self, *, begins_in_thought: bool) -> Reading[None]:
        """Returns at the end of the turn; OutputEnded or OutputCut at the answer's."""
        mark = START
        if begins_in_thought:
            mark = yield from self._read_thought()
        elif not (yield from self._begins_with_header()):
            mark = yield from self._read_text()
        while mark not in self._model.ending_marks:
            if mark == END:
                _, mark = yield from self._read_to_mark()
            elif mark == MESSAGE:
                mark = yield from self._read_body(_Header())
            else:
                mark = yield from self._read_message(mark)
        self._answer.end()

    def _begins_with_header(self) -> Reading[bool]:
        yield from self._tape.skip_space()
        for beginning in (*self._model.mark_of, "to="):
            if (yield from self._tape.stands_here(beginning)):
                return True
        return False

    def _read_message(self, mark: str) -> Reading[str]:
        """A message from within its header on; the mark behind it."""
        header = "" if mark == START else mark
        while len(header) < _LONGEST_HEADER:
            text, mark = yield from self._read_to_mark()
            header += text
            if mark == MESSAGE:
                return (yield from self._read_body(_understood(header)))
            if mark not in (CHANNEL, CONSTRAIN):
                break
            header += mark
        return mark

    def _read_to_mark(self) -> Reading[tuple[str, str]]:
        text, mark = yield from self._tape.read_until(self._model.all_marks)
        return text, self._model.mark_of[mark]

    def _read_body(self, header: _Header) -> Reading[str]:
        if header.recipient is not None:
            return (yield from self._read_call(header, header.recipient))
        if header.is_thought:
            return (yield from self._read_thought())
        return (yield from self._read_text())

    def _read_thought(self) -> Reading[str]:
        self._end_text()
        while True:
            text, mark = self._tape.take_before(self._model.all_marks)
            self._answer.thought(text)
            if mark is not None:
                self._answer.end_thought()
                return self._take(mark)
            yield from self._tape.more()

    def _read_text(self) -> Reading[str]:
        gap = "\n\n" if self._has_text else ""
        while True:
            text, mark = self._tape.take_before(self._model.all_marks)
            if text:
                self._answer.text(gap + text)
                gap, self._has_text = "", True
            if mark is not None:
                return self._take(mark)
            yield from self._tape.more()

    def _take(self, mark: str) -> str:
        self._tape.take(len(mark))
        return self._model.mark_of[mark]

    def _end_text(self) -> None:
        self._answer.end_text()
        self._has_text = False

    def _read_call(self, header: _Header, recipient: str) -> Reading[str]:
        name = _tool_name(recipient, self._answer.tools)
        self._answer.open_block()
        try:
            if (yield from self._has_no_arguments()):
                self._answer.start(name)
                self._answer.finish()
            else:
                yield from read_call(self._tape, self._answer, name, end=self._model.call_end)
            self._has_text = False
            _, mark = yield from self._read_to_mark()
        except NotACall as error:
            said = self._answer.fail(error.why)
            if header.is_thought:  # a tool of the model's own, in the middle of its thinking
                self._answer.thought(said)
                return (yield from self._read_thought())
            self._answer.text(said)
            return (yield from self._read_text())
        except OutputEnded:
            self._tape.take_all()
            self._answer.text(self._answer.fail(_ENDED))
            raise
        except OutputCut:
            self._tape.take_all()
            self._answer.text(self._answer.fail(_CUT, is_cut=True))
            raise
        self._answer.close_block()
        return mark

    def _has_no_arguments(self) -> Reading[bool]:
        yield from self._tape.skip_space()
        is_over = self._tape.is_over and self._tape.is_empty
        return is_over or (yield from self._tape.stands_here(self._model.call_end))


_CUT = "The answer was cut short in the middle of a tool call."
_ENDED = "The answer ended in the middle of a tool call."


def _understood(header: str) -> _Header:
    """A header from behind its `<|start|>`; its marks as they are spelled."""
    recipient = _RECIPIENT.search(header)
    _, _, channel = header.partition(CHANNEL)
    is_thought = channel.strip().startswith("analysis")
    return _Header(is_thought, None if recipient is None else recipient.group(1))


def _tool_name(recipient: str, tools: Sequence[CallableTool]) -> str:
    """The tool that a recipient means: without namespace, and without a channel run into it."""
    names = {tool.name for tool in tools}
    plain = recipient.partition(MARK)[0].removeprefix("functions.")
    without = [plain, *(plain.removesuffix(channel) for channel in _CHANNEL_NAMES)]
    return next((name for name in [*without, recipient] if name in names), plain)
