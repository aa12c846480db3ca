"""What readers tell of an answer, as the pieces that the daemon is told.

Here text meets its stop strings, and loses the white space that only separates it from a thought
or a call. Stop strings are for text alone: none is found in thoughts or calls, nor across one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlx_backend.messages import (
    AnswerForm,
    CallableTool,
    CallArguments,
    CallFinished,
    CallStarted,
    Malformed,
    Piece,
    StopFound,
    TextPiece,
    ThoughtPiece,
)
from mlx_backend.output.call_format import NotACall
from mlx_backend.output.plain import StopStrings
from mlx_backend.output.tape import MARK, SPACE, Tape


class _Trimmed:
    """A block's text without its outer white space, which is held until more text follows."""

    def __init__(self, *, keeps_first: bool = False) -> None:
        self._keeps_first = keeps_first
        self._held: list[str] = []
        self.is_blank = True

    def push(self, text: str) -> str:
        inner = text.rstrip(SPACE)
        if not inner:
            self._held.append(text)
            return ""
        before = "".join(self._held)
        self._held = [text[len(inner) :]]
        if self.is_blank and not self._keeps_first:
            before, inner = "", inner.lstrip(SPACE)
        self.is_blank = False
        return before + inner

    def rest(self) -> str:
        """The white space at the answer's end, which belongs to it."""
        return "" if self.is_blank and not self._keeps_first else "".join(self._held)


class AnswerPieces:
    """Takes what readers tell, as `call_format.Calls` and otherwise; gives pieces (`take`).

    Nothing is taken any more once a stop string was found (`is_stopped`).
    """

    def __init__(self, tape: Tape, form: AnswerForm) -> None:
        self.tools: Sequence[CallableTool] = form.tools
        self.is_stopped = False
        self._tape = tape
        self._tool_of = {tool.name: tool for tool in form.tools}
        self._stops = StopStrings(form.stop)
        self._text = _Trimmed(keeps_first=True)
        self._thought = _Trimmed()
        self._calls = 0
        self._is_call_open = False
        self._has_arguments = False
        self._is_block_read = False
        self._json: list[str] = []  # of the open call, not yet among the pieces
        self._pieces: list[Piece] = []

    def take(self) -> Sequence[Piece]:
        self._give_json()
        pieces, self._pieces = self._pieces, []
        return pieces

    def text(self, text: str) -> None:
        if self.is_stopped or not text:
            return
        self._give_text(self._stops.push(_without_marks(text)))
        if self._stops.found is not None:
            if rest := self._text.rest():
                self._pieces.append(TextPiece(rest))
            self._pieces.append(StopFound(self._stops.found))
            self.is_stopped = True

    def _give_text(self, text: str) -> None:
        if text and (text := self._text.push(text)):
            self._pieces.append(TextPiece(text))

    def end_text(self) -> None:
        """A thought or a call follows: what was held back for a stop string is text."""
        if self.is_stopped:
            return
        self._give_text(self._stops.finish())
        self._text = _Trimmed()

    def thought(self, text: str) -> None:
        text = self._thought.push(_without_marks(text)) if text else ""
        if text and not self.is_stopped:
            self._pieces.append(ThoughtPiece(text))

    def end_thought(self) -> None:
        self._thought = _Trimmed()

    def end(self) -> None:
        """The answer is over."""
        if self.is_stopped:
            return
        self._give_text(self._stops.finish())
        if rest := self._text.rest():
            self._pieces.append(TextPiece(rest))

    def open_block(self) -> None:
        """One call or several may follow; if not, what is read from here on is text."""
        self._is_block_read = False
        self._tape.keep()

    def close_block(self) -> None:
        """All of it was read."""
        self._tape.kept()
        self._abandon_call("The model's call was not finished.")

    def start(self, name: str) -> CallableTool:
        self._abandon_call("A call was begun inside another one.")
        tool = self._tool_of.get(name)
        if tool is None:
            shown = _without_marks(name)[:64]
            raise NotACall(f"The model called {shown!r}, which is none of the request's tools.")
        self.end_text()
        self._tape.kept()
        self._is_call_open, self._has_arguments = True, False
        self._add_piece(CallStarted(self._calls, name))
        return tool

    def add(self, json: str) -> None:
        if json and self._is_call_open:
            self._has_arguments = True
            self._json.append(json)

    def _give_json(self) -> None:
        if self._json:
            json, self._json = "".join(self._json), []
            if (json := _without_marks(json)) and not self.is_stopped:
                self._pieces.append(CallArguments(self._calls, json))

    def finish(self) -> None:
        if not self._is_call_open:
            return
        if not self._has_arguments:
            self.add("{}")
        self._add_piece(CallFinished(self._calls))
        self._close_call()
        self._is_block_read = True
        self._tape.keep()

    def fail(self, why: str, *, is_cut: bool = False, is_quiet: bool = False) -> str:
        """The block cannot be read on: what was not told of it, which is text then.

        Where the answer was cut behind a whole call, that is nothing: it lacks but a mark.
        `is_quiet`: of what was no call yet nobody is warned.
        """
        raw = self._tape.kept()
        if self._is_call_open:
            self._abandon_call(why)
            return ""
        if self._is_block_read and (is_cut or not raw.strip()):
            return ""
        if why and not is_quiet:
            self._add_piece(Malformed(why))
        return raw

    def _abandon_call(self, why: str) -> None:
        if self._is_call_open:
            self._add_piece(Malformed(why))
            self._close_call()

    def _close_call(self) -> None:
        self._is_call_open = False
        self._calls += 1

    def _add_piece(self, piece: Piece) -> None:
        self._give_json()
        if not self.is_stopped:
            self._pieces.append(piece)


def _without_marks(text: str) -> str:
    return text.replace(MARK, "") if MARK in text else text
