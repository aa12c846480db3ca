"""Rows that take their steps together, on mlx-lm's `GenerationBatch`.

A batch is pipelined: a step runs the model on the tokens drawn before, which it returns, and
leaves the next draw in flight. So a returned token is part of its row's state already, and a
row's state is exactly its prompt and every returned token.

* A batch of one runs on its row's own plain caches; nothing of its history is copied.
* mlx-lm's own way in and out (`extend`, `filter`, `next`) copies whole rows and is not used;
  who comes together when is `batching`'s.
* Rows with a grammar wait for each drawn id before the next draw. They share with no other row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationBatch

from mlx_backend.grammar_mask import GrammarMask
from mlx_backend.grouping import BatchShape
from mlx_backend.interface import Sampled
from mlx_backend.layers import Caches, leaf_caches
from mlx_backend.live_row import LiveRow
from mlx_backend.merging import Source, merged
from mlx_backend.messages import Sampling, TokenIds, TokenScore
from mlx_backend.rows import buffers
from mlx_backend.sampling import BatchSampler, penalties
from mlx_backend.scores import BatchScorer

NOT_A_NUMBER = "the model's output is not a number"
SETTLE_STEPS = 64
"""How often a batch evaluates its rows' offsets, which some layers never look at."""


class DecodeBatch(GenerationBatch):  # type: ignore[misc]
    """Rows that take their steps together. `uids` are the rows; None stands for one that left."""

    uids: list[LiveRow | None]
    prompt_cache: Caches

    def __init__(
        self,
        forward: Callable[..., Any],
        row: LiveRow,
        last_token: int,
        sampling: Sampling,
        context: TokenIds,
        first_index: int,
    ) -> None:
        """A batch of one on the row's own caches; runs `last_token` through the model."""
        self.scorer = BatchScorer([sampling])
        self.sampler = BatchSampler([sampling], [first_index], self.scorer)
        self.steps = 0
        super().__init__(
            model=_Watched(forward, self.scorer),
            uids=[row],
            inputs=mx.array([last_token]),
            prompt_cache=row.caches,
            tokens=[[]],
            samplers=[self.sampler],
            fallback_sampler=self.sampler,
            logits_processors=[_processors(sampling, context, first_index)],
            stop_sequences=[],
            max_tokens=[],
        )
        row.is_decoding = True
        row.length += 1

    @property
    def rows(self) -> list[LiveRow]:
        """The rows that are still in it."""
        return [row for row in self.uids if row is not None]

    @property
    def shape(self) -> BatchShape:
        rows = self.rows
        lengths = tuple(row.length for row in rows)
        found = buffers(rows[0].layout, self.prompt_cache)
        held, ahead = (0, 0) if found is None else (found.rows * found.capacity, found.ahead)
        return BatchShape(lengths, None in self.uids, held, ahead, self.is_constrained)

    @property
    def is_constrained(self) -> bool:
        """Whether its rows have grammars: all have, or none."""
        return self.sampler.samplings[0].grammar is not None

    def leave(self, row: LiveRow) -> None:
        """What it leaves behind is accounted to those that stay, until the batch is rebuilt."""
        self.uids[self.uids.index(row)] = None
        staying = self.rows
        for other in staying:
            other.sharers = len(staying)

    def in_flight(self, row: LiveRow) -> Sampled:
        """The row's next token, which is drawn but not in its state yet."""
        index = self.uids.index(row)
        error = _first_error(self.logits_processors[index])
        if error is None and self.sampler.failed[index].item():
            error = NOT_A_NUMBER
        if error is not None:
            return Sampled(row, -1, error)
        token: Any = self._next_tokens[index].item()
        return Sampled(row, int(token), score=self.scorer.in_flight.resolved()[index])

    def advance(self) -> list[Sampled]:
        """One token of every row. A row that failed has left, and its caches with it."""
        failed, scores = self.sampler.failed, self.scorer.in_flight
        errors = [_first_error(processors) for processors in self.logits_processors]
        tokens, _ = self._step()
        self._settle()
        for index, has_failed in enumerate(failed.tolist()):
            if has_failed:
                errors[index] = errors[index] or NOT_A_NUMBER
        seats = zip(list(self.uids), tokens, errors, scores.resolved(), strict=True)
        return [self._sampled(row, *drawn) for row, *drawn in seats if row is not None]

    def _settle(self) -> None:
        """Keep the graphs of offsets short: layers without positions would let them grow."""
        self.steps += 1
        if self.steps % SETTLE_STEPS == 0:
            counts = [getattr(leaf, "offset", None) for leaf in leaf_caches(self.prompt_cache)]
            mx.eval([count for count in counts if isinstance(count, mx.array)])

    def _sampled(
        self, row: LiveRow, token: int, error: str | None, score: TokenScore | None
    ) -> Sampled:
        if error is not None:
            self.leave(row)
            row.let_go()
            return Sampled(row, -1, error)
        row.length += 1
        return Sampled(row, token, score=score)

    def rebuild(self, others: Sequence[DecodeBatch]) -> None:
        """Become the batch of all rows in it and in `others`, which are used up."""
        seats = [
            (batch, index)
            for batch in (self, *others)
            for index, row in enumerate(batch.uids)
            if row is not None
        ]

        def gathered(name: str) -> list[Any]:
            return [getattr(batch, name)[index] for batch, index in seats]

        self.scorer = self.model.scorer = _gathered_scorer(seats)
        self.sampler = _gathered_sampler(seats, self.scorer)
        self.prompt_cache = merged([Source(b.prompt_cache, index) for b, index in seats])
        self._next_tokens = mx.stack(gathered("_next_tokens"))
        mx.eval(self._next_tokens, self.sampler.failed)
        self._next_logprobs = gathered("_next_logprobs")
        self.tokens = gathered("tokens")
        self._token_context = gathered("_token_context")
        self.logits_processors = gathered("logits_processors")
        self.uids = gathered("uids")
        self.samplers = [self.sampler] * len(seats)
        self.fallback_sampler = self.sampler
        for index, row in enumerate(self.rows):
            row.caches, row.index, row.sharers = self.prompt_cache, index, len(seats)


def _processors(sampling: Sampling, context: TokenIds, generated: int) -> tuple[Any, ...]:
    """What is done to a row's logits: the grammar has the last word."""
    found: tuple[Any, ...] = penalties(sampling, context, generated)
    if sampling.grammar is None:
        return found
    return (*found, GrammarMask(sampling.grammar, context[len(context) - generated :]))


def _first_error(processors: Sequence[Any]) -> str | None:
    return next((processor.error for processor in processors if processor.error), None)


class _Watched:
    """A forward pass whose logits a scorer sees before the batch works on them."""

    def __init__(self, forward: Callable[..., Any], scorer: BatchScorer) -> None:
        self.scorer = scorer
        self._forward = forward

    def __call__(self, inputs: Any, cache: Caches) -> Any:
        logits = self._forward(inputs, cache)
        self.scorer.see(logits)
        return logits


def _gathered_scorer(seats: Sequence[tuple[DecodeBatch, int]]) -> BatchScorer:
    """The scorer of these rows, which knows the scores of their draws in flight."""
    samplings = [batch.sampler.samplings[index] for batch, index in seats]
    return BatchScorer(samplings, [b.scorer.in_flight.resolved()[index] for b, index in seats])


def _gathered_sampler(
    seats: Sequence[tuple[DecodeBatch, int]], scorer: BatchScorer
) -> BatchSampler:
    """The sampler of these rows, which knows which of their draws in flight have failed."""
    samplings = [batch.sampler.samplings[index] for batch, index in seats]
    indices = [batch.sampler.indices[index] for batch, index in seats]
    sampler = BatchSampler(samplings, indices, scorer)
    sampler.failed = mx.stack([batch.sampler.failed[index] for batch, index in seats])
    return sampler
