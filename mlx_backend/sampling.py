"""Draws the next token of every row of a batch in one vectorised call.

Rules that hold here:

* A row's draw depends on its own logits, its own options and (seed, index of the token), never on
  its neighbours or its place in the batch; a row can be taken out and go on elsewhere.
* Temperature 0 is the argmax. Rows pay only for what they ask for: a batch of greedy rows is one
  argmax, and only rows with top_p, top_k or min_p are sorted.
* Nothing raises for a row's sake: a row without a usable distribution is marked in `failed`, a
  penalty that cannot be applied marks itself with `error`. An exception would leave the other
  rows of the batch one token off.

Options are arrays, so that no distinct value compiles anew. The order and meaning of the filters
are those of mlx-lm: they look at the probabilities before the temperature is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlx_backend.messages import Sampling, TokenIds
from mlx_backend.scores import BatchScorer

_U64 = np.uint64
_GOLDEN = _U64(0x9E3779B97F4A7C15)


class BatchSampler:
    """The samplers of a batch as one callable: log-probabilities (rows, vocabulary) to (rows,).

    `indices[i]` counts the tokens that row i has drawn so far; each call adds one to all.
    `scorer` was shown the logits that the log-probabilities come from.
    """

    def __init__(
        self,
        samplings: Sequence[Sampling],
        indices: Sequence[int],
        scorer: BatchScorer | None = None,
    ) -> None:
        self.samplings = list(samplings)
        self.indices = [int(i) for i in indices]
        self.failed: Any = None
        self._scorer = scorer
        self._groups = _groups(self.samplings)

    def __call__(self, logprobs: Any) -> Any:
        """The tokens; `failed` becomes a lazy (rows,) mask. Scores are evaluated along, like it."""
        are_all_drawn = any(group.is_whole for group in self._groups)
        tokens: Any = None if are_all_drawn else mx.argmax(logprobs, axis=-1)
        for group in self._groups:
            tokens = group.draw_into(tokens, logprobs, self.indices)
        # Normalising spreads a NaN or +inf over its whole row, so any token's entry tells.
        chosen = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
        self.failed = mx.logical_not(mx.isfinite(chosen))
        self.indices = [i + 1 for i in self.indices]
        scores = () if self._scorer is None else self._scorer.score(tokens)
        return mx.depends(tokens, [self.failed, *scores])


class _Group:
    """Rows of a batch that are drawn alike: here from the whole distribution."""

    def __init__(self, rows: list[int], samplings: Sequence[Sampling]) -> None:
        chosen = [samplings[i] for i in rows]
        self.rows = rows
        self.is_whole = len(rows) == len(samplings)
        self.where = mx.array(rows)
        self.temperatures = mx.array([s.temperature for s in chosen])[:, None]
        self.seeds = np.array([s.seed & 0xFFFFFFFFFFFFFFFF for s in chosen], dtype=_U64)

    def draw_into(self, tokens: Any, logprobs: Any, indices: Sequence[int]) -> Any:
        """`tokens` with those of this group's rows replaced; they may be None if it has all."""
        keys = row_keys(self.seeds, [indices[i] for i in self.rows])
        noise = _gumbel(mx.array(keys), logprobs.shape[-1])
        if self.is_whole:
            return self._draw(logprobs, noise)
        tokens[self.where] = self._draw(logprobs[self.where], noise)
        return tokens

    def _draw(self, logprobs: Any, noise: Any) -> Any:
        return mx.argmax(logprobs / self.temperatures + noise, axis=-1)


class _FilteredGroup(_Group):
    """Rows with one top_k (0 for none), and perhaps top_p or min_p: cut, and drawn by rank."""

    def __init__(self, rows: list[int], samplings: Sequence[Sampling], top_k: int) -> None:
        super().__init__(rows, samplings)
        chosen = [samplings[i] for i in rows]
        self.top_k = top_k
        # Rounding lets a cumulated mass exceed 1: without top_p the limit is beyond reach.
        self.top_ps = mx.array([s.top_p if s.top_p < 1 else 2.0 for s in chosen])[:, None]
        min_ps = np.array([s.min_p for s in chosen], dtype=np.float32)
        with np.errstate(divide="ignore"):
            self.log_min_ps = mx.array(np.log(min_ps))[:, None]

    def _draw(self, logprobs: Any, noise: Any) -> Any:
        order = self._best_first(logprobs)
        ranked = mx.take_along_axis(logprobs, order, axis=-1)
        mass_above = mx.cumsum(mx.exp(ranked), axis=-1, inclusive=False)
        keep = mass_above < self.top_ps
        keep &= ranked >= ranked[:, :1] + self.log_min_ps
        keep |= mx.arange(ranked.shape[-1])[None] == 0
        scores = ranked / self.temperatures + mx.take_along_axis(noise, order, axis=-1)
        winner = mx.argmax(mx.where(keep, scores, -mx.inf), axis=-1, keepdims=True)
        return mx.take_along_axis(order, winner, axis=-1)[:, 0]

    def _best_first(self, logprobs: Any) -> Any:
        """The tokens from the most likely on; with top_k those alone, which is far less to sort."""
        if not 0 < self.top_k < logprobs.shape[-1]:
            return mx.argsort(-logprobs, axis=-1)
        best = mx.argpartition(-logprobs, kth=self.top_k - 1, axis=-1)[:, : self.top_k]
        order = mx.argsort(-mx.take_along_axis(logprobs, best, axis=-1), axis=-1)
        return mx.take_along_axis(best, order, axis=-1)


def _groups(samplings: Sequence[Sampling]) -> list[_Group]:
    """The rows that are drawn, by how; greedy ones are in none."""
    plain: list[int] = []
    filtered: dict[int, list[int]] = {}
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0 and _is_filtered(sampling):
            filtered.setdefault(sampling.top_k, []).append(row)
        elif sampling.temperature > 0:
            plain.append(row)
    groups: list[_Group] = [_Group(plain, samplings)] if plain else []
    return groups + [_FilteredGroup(rows, samplings, k) for k, rows in filtered.items()]


def _is_filtered(sampling: Sampling) -> bool:
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0


def _gumbel(keys: Any, size: int) -> Any:
    """Standard Gumbel noise (rows, size), each row from its own key."""
    return mx.vmap(lambda key: mx.random.gumbel((size,), key=key))(keys)


def row_keys(seeds: npt.NDArray[np.uint64], indices: Sequence[int]) -> npt.NDArray[np.uint32]:
    """A random key (rows, 2) for each (seed, index): SplitMix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        steps = np.array(indices, dtype=_U64) + _U64(1)
        mixed = _mix64(_mix64(seeds + _GOLDEN) + steps * _GOLDEN)
    return mixed.view(np.uint32).reshape(-1, 2)


def _mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


class Penalties:
    """A logits processor for one row: repetition, presence, frequency and logit bias.

    Presence and frequency count the tokens generated so far; repetition looks at every token of
    the context, the prompt included, and is aware of the sign (Keskar et al. 2019, CTRL). The
    counts live on the device and grow by one token per call. `error` is set instead of raising.
    """

    def __init__(self, sampling: Sampling, context: TokenIds, generated: int = 0) -> None:
        """The last `generated` tokens of `context` were generated."""
        self.error: str | None = None
        self._sampling = sampling
        self._context: TokenIds | None = context
        self._generated = generated
        self._seen: Any = None
        self._counts: Any = None
        self._bias: Any = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """`tokens` ends with the newest one in the row's state; `logits` is (1, vocabulary)."""
        if self.error is not None:
            return logits
        try:
            self._note(tokens[-1:], logits.shape[-1])
            return self._apply(logits)
        except Exception as error:  # whatever it is, the row's neighbours must go on
            self.error = f"the penalties could not be applied: {error}"
            return logits

    def _note(self, newest: Any, vocabulary_size: int) -> None:
        if self._context is not None:
            self._start(self._context, vocabulary_size)
            self._context = None
            return
        if self._seen is not None:
            self._seen[newest] = True
        if self._counts is not None:
            self._counts = self._counts.at[newest].add(1.0)

    def _start(self, context: TokenIds, vocabulary_size: int) -> None:
        """Lay out what the options need; the first call's newest token is the prompt's last.

        What they do not need stays None: nothing would ever evaluate its growing graph.
        """
        options = self._sampling
        ids = [token for token, _ in options.logit_bias]
        for token in (*ids, int(context.min()), int(context.max())):
            if not 0 <= token < vocabulary_size:
                raise ValueError(f"token id {token} is outside the vocabulary")
        if options.repetition_penalty != 1:
            seen = np.zeros(vocabulary_size, dtype=bool)
            seen[context] = True
            self._seen = mx.array(seen)
        if options.presence_penalty or options.frequency_penalty:
            said = context[len(context) - self._generated :]
            self._counts = mx.array(np.bincount(said, minlength=vocabulary_size).astype(np.float32))
        if ids:
            bias = np.zeros(vocabulary_size, dtype=np.float32)
            for token, value in options.logit_bias:
                bias[token] += value
            self._bias = mx.array(bias)

    def _apply(self, logits: Any) -> Any:
        options = self._sampling
        if self._seen is not None:
            penalty = options.repetition_penalty
            penalised = mx.where(logits < 0, logits * penalty, logits / penalty)
            logits = mx.where(self._seen, penalised, logits)
        if options.presence_penalty:
            logits = logits - options.presence_penalty * (self._counts > 0)
        if options.frequency_penalty:
            logits = logits - options.frequency_penalty * self._counts
        return logits if self._bias is None else logits + self._bias


def penalties(sampling: Sampling, context: TokenIds, generated: int = 0) -> tuple[Penalties, ...]:
    """The logits processors that `sampling` asks for: one or none."""
    is_wanted = (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
    )
    return (Penalties(sampling, context, generated),) if is_wanted else ()
