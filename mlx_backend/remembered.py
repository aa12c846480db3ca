"""Answers as they were sampled: the ids, what they meant, and the prompt that they answer.

An answer is looked up by its first call's id, which is its own, and by the history that it
answers, as one number: clients cannot be asked to send anything more. Bounded by bytes, the least
recently used go first; what was forgotten costs reading it again, never an answer. What is noted
of an answer is enough for the next process to remember it.
"""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from mlx_backend.digests import number_of
from mlx_backend.journal import NO_NOTES, Notes, Value
from mlx_backend.memo import Memo
from mlx_backend.messages import RenderedAs, SampledCall, SampledTurn, TokenIds, token_ids

MEMO_BYTES = 32 << 20
_MOST_ALIKE = 8  # answers to one history: tried again and again, or by many at once
_OBJECT_BYTES = 600
_STORED_IDS = "<i4"


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """An answer to `prompt`. Known by identity; equal ones have the same `name`."""

    prompt: RenderedAs
    ids: TokenIds
    turn: SampledTurn
    name: int

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

    KIND = "answer"  # of its notes

    def __init__(self, max_bytes: int = MEMO_BYTES, notes: Notes = NO_NOTES) -> None:
        self._answers: Memo[_Key, _Answers] = Memo(max_bytes, _size)
        self._notes = notes

    def put(self, prompt: RenderedAs, sampled: Sequence[int], turn: SampledTurn) -> None:
        answer = _named(prompt, token_ids(sampled), turn)
        self._take(answer)
        self._note(answer)

    def restore(self, value: Value, vocabulary_size: int) -> None:
        """Take back what was noted. Raises as odd data does."""
        self._take(_from_note(value, vocabulary_size))

    def called(self, call_id: str) -> _Answers:
        """The answer whose first call has this id."""
        return self._found(call_id)

    def after(self, history: int) -> _Answers:
        """The answers to a history, the oldest first."""
        return self._found(history)

    def _found(self, key: _Key) -> _Answers:
        answers = self._answers.get(key) or ()
        for answer in answers:
            self._note(answer)
        return answers

    def _take(self, answer: Remembered) -> None:
        history, calls = answer.prompt.history, answer.turn.calls
        alike = self._answers.get(history) or ()
        if any(answer.name == other.name for other in alike):
            return
        self._answers.put(history, (*alike[1 - _MOST_ALIKE :], answer))
        if calls:
            self._answers.put(calls[0].id, (answer,))

    def _note(self, answer: Remembered) -> None:
        self._notes.add(self.KIND, answer.name, partial(_to_note, answer))


def _named(prompt: RenderedAs, ids: TokenIds, turn: SampledTurn) -> Remembered:
    calls = [text for call in turn.calls for text in (call.id, call.name, call.arguments)]
    name = number_of(
        prompt.characters,
        prompt.digest,
        prompt.history,
        np.ascontiguousarray(ids, dtype=_STORED_IDS).tobytes(),
        turn.is_cut,
        turn.text,
        turn.thought,
        *calls,
    )
    return Remembered(prompt, ids, turn, name)


def _to_note(answer: Remembered) -> Value:
    prompt, turn = answer.prompt, answer.turn
    return {
        "characters": prompt.characters,
        "digest": prompt.digest.hex(),
        "history": prompt.history,
        "ids": b64encode(answer.ids.astype(_STORED_IDS).tobytes()).decode(),
        "text": turn.text,
        "thought": turn.thought,
        "calls": [[call.id, call.name, call.arguments] for call in turn.calls],
        "is_cut": turn.is_cut,
    }


def _from_note(value: Value, vocabulary_size: int) -> Remembered:
    ids = np.frombuffer(b64decode(value["ids"], validate=True), dtype=_STORED_IDS)
    if not len(ids) or ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError("an answer of ids that are not in the vocabulary")
    calls = (SampledCall(str(each), str(name), str(said)) for each, name, said in value["calls"])
    return _named(
        RenderedAs(int(value["characters"]), bytes.fromhex(value["digest"]), int(value["history"])),
        token_ids(ids),
        SampledTurn(str(value["text"]), str(value["thought"]), tuple(calls), bool(value["is_cut"])),
    )


def _size(key: _Key, answers: _Answers) -> int:
    """What is kept under two keys counts twice: either may be the last to keep it."""
    return sum(answer.nbytes for answer in answers)
