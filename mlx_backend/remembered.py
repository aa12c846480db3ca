"""Answers as they were sampled: the ids, what they meant, and the prompt that they answer.

An answer is looked up by its first call's id, which is its own, and by the history that it
answers, as one number: clients cannot be asked to send anything more. Bounded by bytes, the least
recently used go first; what was forgotten costs reading it again, never an answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlx_backend.memo import Memo
from mlx_backend.messages import RenderedAs, SampledTurn, TokenIds, token_ids

MEMO_BYTES = 32 << 20
_MOST_ALIKE = 8  # answers to one history: tried again and again, or by many at once
_OBJECT_BYTES = 600


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """An answer to `prompt`. Known by identity."""

    prompt: RenderedAs
    ids: TokenIds
    turn: SampledTurn

    @property
    def nbytes(self) -> int:
        turn = self.turn
        texts = [turn.text, turn.thought, *(call.arguments for call in turn.calls)]
        objects = _OBJECT_BYTES * (1 + len(turn.calls))
        return objects + self.ids.nbytes + sum(map(sys.getsizeof, texts))


_Key: TypeAlias = str | int  # the id of a call, or a history
_Answers: TypeAlias = tuple[Remembered, ...]


class RememberedAnswers:
    """Remembers about `max_bytes` of answers. Thread-safe."""

    def __init__(self, max_bytes: int = MEMO_BYTES) -> None:
        self._answers: Memo[_Key, _Answers] = Memo(max_bytes, _size)

    def put(self, prompt: RenderedAs, sampled: Sequence[int], turn: SampledTurn) -> None:
        answer = Remembered(prompt, token_ids(sampled), turn)
        alike = self.after(prompt.history)
        if any(_is_same(answer, other) for other in alike):
            return
        self._answers.put(prompt.history, (*alike[1 - _MOST_ALIKE :], answer))
        if turn.calls:
            self._answers.put(turn.calls[0].id, (answer,))

    def called(self, call_id: str) -> _Answers:
        """The answer whose first call has this id."""
        return self._answers.get(call_id) or ()

    def after(self, history: int) -> _Answers:
        """The answers to a history, the oldest first."""
        return self._answers.get(history) or ()


def _is_same(one: Remembered, other: Remembered) -> bool:
    return (
        one.turn == other.turn
        and one.prompt == other.prompt
        and one.ids.tobytes() == other.ids.tobytes()
    )


def _size(key: _Key, answers: _Answers) -> int:
    """What is kept under two keys counts twice: either may be the last to keep it."""
    return sum(answer.nbytes for answer in answers)
