"""The `OutputStream` of an answer that may have thoughts and calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mlx_backend.messages import AnswerForm, Piece
from mlx_backend.output.answer_pieces import AnswerPieces
from mlx_backend.output.plain import TextDecoder
from mlx_backend.output.tape import Reading, Tape


class AnswerReader(Protocol):
    """A family's way to write answers: `splitting.Splitter`, `harmony.Harmony`."""

    def read(self, tape: Tape, answer: AnswerPieces, form: AnswerForm) -> Reading[None]:
        """Read a whole answer from the tape and tell it. Raises nothing."""


class AnswerOutput:
    """`decoder` gives marks as `MarkingDecoder` does, if the tokenizer has any."""

    def __init__(self, decoder: TextDecoder, reader: AnswerReader, form: AnswerForm) -> None:
        self.tape = Tape()
        self._decoder = decoder
        self._answer = AnswerPieces(self.tape, form)
        self._reading = reader.read(self.tape, self._answer, form)
        next(self._reading)

    def push(self, ids: Sequence[int]) -> Sequence[Piece]:
        if self._answer.is_stopped:
            return ()
        text = self._decoder.push(ids)
        if not text:
            return ()
        self.tape.push(text)
        next(self._reading, None)
        return self._answer.take()

    def finish(self, *, is_cut: bool = False) -> Sequence[Piece]:
        if self._answer.is_stopped:
            return ()
        self.tape.push(self._decoder.finish())
        self.tape.end(is_cut=is_cut)
        next(self._reading, None)
        return self._answer.take()
