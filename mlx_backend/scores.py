"""Log-probabilities of the rows that ask for them, for a whole batch at once.

They are the model's own: taken from its logits before penalties, masks, temperature and filters
see them. They are lazy, and evaluated with the tokens that they are about, so that telling them
costs no step its place in the pipeline. Nothing is computed for rows that do not ask, and nothing
at all where none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlx_backend.messages import Sampling, TokenScore

LOWEST = -9999.0
"""Stands for impossible: JSON has no infinity."""


class Scores:
    """The scores of one draw, one place for each row of the batch; None for rows that do not ask.

    `arrays` are lazy; `resolved` waits for them.
    """

    def __init__(
        self,
        known: Sequence[TokenScore | None],
        rows: Sequence[int] = (),
        counts: Sequence[int] = (),
        arrays: Sequence[Any] = (),
    ) -> None:
        """`known`, with those of `rows` still to be read from `arrays`."""
        self.arrays = tuple(arrays)
        self._known = list(known)
        self._pending = tuple(zip(rows, counts, strict=True))

    def resolved(self) -> list[TokenScore | None]:
        """The scores as plain values; evaluates what is not yet."""
        if self.arrays:
            tokens, logprobs, best, best_logprobs = (array.tolist() for array in self.arrays)
            for place, (row, count) in enumerate(self._pending):
                likeliest = zip(best[place][:count], best_logprobs[place][:count], strict=True)
                self._known[row] = TokenScore(tokens[place], logprobs[place], tuple(likeliest))
            self.arrays = ()
        return self._known


class BatchScorer:
    """Scores each draw of a batch. `in_flight` are the newest draw's."""

    def __init__(
        self, samplings: Sequence[Sampling], in_flight: Sequence[TokenScore | None] = ()
    ) -> None:
        asking = [i for i, s in enumerate(samplings) if s.alternatives is not None]
        self.in_flight = Scores(in_flight or [None] * len(samplings))
        self._size = len(samplings)
        self._rows = asking
        self._counts = [samplings[i].alternatives or 0 for i in asking]
        self._where = mx.array(asking) if asking else None
        self._logits: Any = None

    def see(self, logits: Any) -> None:
        """The model's logits for the next draw, (rows, tokens, vocabulary)."""
        if self._where is not None:
            self._logits = logits[self._where, -1]

    def score(self, tokens: Any) -> tuple[Any, ...]:
        """Note what was drawn, (rows,); the arrays to evaluate along with it."""
        if self._where is None:
            return ()
        logits, self._logits = self._logits, None
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        drawn = tokens[self._where]
        chosen = mx.take_along_axis(logprobs, drawn[:, None], axis=-1)[:, 0]
        best, best_logprobs = _likeliest(logprobs, max(self._counts))
        arrays = (drawn, mx.maximum(chosen, LOWEST), best, mx.maximum(best_logprobs, LOWEST))
        self.in_flight = Scores([None] * self._size, self._rows, self._counts, arrays)
        return arrays


def _likeliest(logprobs: Any, count: int) -> tuple[Any, Any]:
    """The ids of each row's `count` likeliest tokens, best first, and their log-probabilities."""
    count = min(count, logprobs.shape[-1])
    if count == 0:
        nothing = mx.zeros((logprobs.shape[0], 0))
        return nothing.astype(mx.uint32), nothing
    best = mx.argpartition(-logprobs, kth=count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(logprobs, best, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(best, order, axis=-1), mx.take_along_axis(values, order, axis=-1)
