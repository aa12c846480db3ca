"""Decodes rows together: which batches there are, and one step of all of them.

* A row that decodes alone runs on its own plain caches; nothing of its history is copied.
* Rows join and leave in one rebuild at the start of the next step, one batch per step (`merging`);
  who shares with whom is `grouping`'s. Until its turn comes a row decodes alone.
* Rows whose caches have no batched form always decode alone, in turn.
* Batches whose rows have grammars step last: the device has work while their masks are made.
* Log-probabilities are taken in float32: normalised in bfloat16, distinct logits would tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from mlx_backend.decode_batch import DecodeBatch
from mlx_backend.errors import StepFailed
from mlx_backend.grouping import next_rebuild
from mlx_backend.interface import Counters, Sampled
from mlx_backend.layers import CacheLayout, Caches
from mlx_backend.live_row import LiveRow
from mlx_backend.merging import why_alone
from mlx_backend.messages import Sampling, TokenIds


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
        self._batches.sort(key=lambda batch: batch.is_constrained)

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
