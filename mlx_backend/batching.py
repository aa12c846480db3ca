"""Decodes rows together, on mlx-lm's `GenerationBatch`.

A batch is pipelined: a step runs the model on the tokens drawn before, which it returns, and
leaves the next draw in flight. So a returned token is part of its row's state already, and a
row's state is exactly its prompt and every returned token.

* A row that decodes alone runs on its own plain caches; nothing of its history is copied.
* Rows join and leave in one rebuild at the start of the next step, one batch per step (`merging`);
  who shares with whom is `grouping`'s. Until its turn comes a row decodes alone.
* Rows whose caches have no batched form always decode alone, in turn.
* mlx-lm's own way in and out (`extend`, `filter`, `next`) copies whole rows and is not used.
* Log-probabilities are taken in float32: normalised in bfloat16, distinct logits would tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationBatch

from mlx_backend.errors import StepFailed
from mlx_backend.grouping import BatchShape, next_rebuild
from mlx_backend.interface import Counters, Sampled
from mlx_backend.layers import CacheLayout, Caches, leaf_caches
from mlx_backend.merging import Source, merged, why_alone
from mlx_backend.messages import Sampling, TokenIds, TokenScore
from mlx_backend.rows import buffers, reserve, rounded_room, state_bytes
from mlx_backend.sampling import BatchSampler, penalties
from mlx_backend.scores import BatchScorer

NOT_A_NUMBER = "the model's output is not a number"
SETTLE_STEPS = 64
"""How often a batch evaluates its rows' offsets, which some layers never look at."""


class LiveRow:
    """Implements `interface.Row`: caches of its own, or a place in a batch's.

    `caches` is what the model takes, `index` the row's place in them, `sharers` how many rows
    account for them. `asked_room` counts where the layers keep no room.
    """

    __slots__ = (
        "asked_room",
        "caches",
        "index",
        "is_decoding",
        "is_released",
        "layout",
        "length",
        "sharers",
    )

    def __init__(self, layout: CacheLayout, caches: Caches, length: int, room: int) -> None:
        self.layout = layout
        self.caches = caches
        self.length = length
        self.asked_room = room
        self.index = 0
        self.sharers = 1
        self.is_decoding = False
        self.is_released = False

    @property
    def room(self) -> int:
        found = buffers(self.layout, self.caches)
        return self.asked_room if found is None else self.length + found.capacity - found.used

    @property
    def nbytes(self) -> int:
        return state_bytes(self.caches) // self.sharers

    def growth_bytes(self, room: int) -> int:
        """What `grow` would add, to the whole batch if the row shares one."""
        found = buffers(self.layout, self.caches)
        if found is None or room <= self.room:
            return 0
        wanted = rounded_room(found.used + room - self.length)
        return (wanted - found.capacity) * found.rows * self.layout.span_token_bytes

    def grow(self, room: int) -> None:
        """Make room for `room` tokens in all; whoever shares the batch has as much ahead."""
        found = buffers(self.layout, self.caches)
        if found is not None:
            reserve(self.layout, self.caches, found.used, found.used + room - self.length)
        self.asked_room = max(self.asked_room, room)

    def let_go(self) -> None:
        """Drop the arrays; those of a batch live on in the batch."""
        self.is_decoding = False
        self.is_released = True
        self.caches = []


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
            logits_processors=[penalties(sampling, context, first_index)],
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
        return BatchShape(lengths, None in self.uids, held, ahead)

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


class Decoder:
    """Every decoding row, in the batches they share."""

    def __init__(
        self, model: Any, layout: CacheLayout, weight_bytes: int, counters: Counters
    ) -> None:
        self._model = model
        self._layout = layout
        self._weight_bytes = weight_bytes
        self._counters = counters
        self._batches: list[DecodeBatch] = []
        self._why_alone = why_alone(model, layout)

    @property
    def warnings(self) -> tuple[str, ...]:
        """That rows cannot decode together, and why."""
        if self._why_alone is None:
            return ()
        return (f"Rows of this model decode in turn, not together: {self._why_alone}.",)

    def add(
        self,
        row: LiveRow,
        last_token: int,
        sampling: Sampling,
        context: TokenIds,
        first_index: int = 0,
    ) -> None:
        """Let `row` decode. Raises StepFailed; then the row may only be released."""
        try:
            batch = DecodeBatch(self._forward, row, last_token, sampling, context, first_index)
        except Exception as error:
            raise StepFailed(f"the first step of a row of {row.length} tokens: {error}") from error
        self._batches.append(batch)

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        """One token of every row. Raises StepFailed; then every row has been let go."""
        if not self._batches:
            return []
        with self._all_or_nothing("a step of the decoding rows"):
            self._rebuild_one(spare_bytes)
            sampled = [one for batch in self._batches for one in batch.advance()]
        self._drop_empty()
        self._counters.steps += 1
        self._counters.tokens_decoded += sum(one.error is None for one in sampled)
        return sampled

    def grow(self, row: LiveRow, room: int) -> None:
        """Make room in a decoding row. Raises StepFailed; then every row has been let go."""
        with self._all_or_nothing(f"making room for {room} tokens"):
            row.grow(room)

    def compact(self) -> None:
        """Rebuild the batches that rows have left. Raises StepFailed as `step` does."""
        with self._all_or_nothing("making batches smaller"):
            for batch in self._batches:
                if batch.shape.has_left:
                    batch.rebuild([])
                    self._counters.batch_copies += 1

    def take_out(self, row: LiveRow) -> Sampled:
        """Remove a row; its token that is in flight."""
        batch = next(batch for batch in self._batches if row in batch.rows)
        sampled = batch.in_flight(row)
        self.remove(row)
        return sampled

    def remove(self, row: LiveRow) -> None:
        """Take the row out if it decodes; a batch it shared is copied before the next step."""
        for batch in self._batches:
            if row in batch.rows:
                batch.leave(row)
        self._drop_empty()

    def clear(self) -> None:
        """Let go of every row."""
        for row in [row for batch in self._batches for row in batch.rows]:
            row.let_go()
        self._batches.clear()

    @contextmanager
    def _all_or_nothing(self, what: str) -> Iterator[None]:
        """After any exception out of a batch, no batch can be trusted."""
        try:
            yield
        except Exception as error:
            self.clear()
            raise StepFailed(f"{what}: {error}") from error

    def _drop_empty(self) -> None:
        self._batches = [batch for batch in self._batches if batch.rows]

    def _forward(self, inputs: Any, cache: Caches) -> Any:
        return self._model(inputs, cache=cache).astype(mx.float32)

    def _rebuild_one(self, spare_bytes: int | None) -> None:
        if self._why_alone is not None:
            return
        shapes = [batch.shape for batch in self._batches]
        chosen = next_rebuild(
            shapes, self._layout.span_token_bytes, self._weight_bytes, spare_bytes
        )
        if not chosen:
            return
        first, *others = [self._batches[index] for index in chosen]
        self._batches = [batch for batch in self._batches if batch not in others]
        first.rebuild(others)
        self._counters.batch_copies += 1


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
