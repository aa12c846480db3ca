"""The real backend: one loaded mlx-lm model, its rows, and the one thread that owns them.

Every call comes from the thread that made the backend. mlx's default stream belongs to a thread,
so that the stream tells: on another thread's the same arrays would be worked on out of order.
What a row is while it is read is in `rows`, while it decodes in `batching`; what is copied out of
it in `snapshots`. Nothing here decides what to read, keep or drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import mlx.core as mx

from mlx_backend.batching import Decoder
from mlx_backend.checkpoints import MlxCheckpoint
from mlx_backend.errors import StepFailed
from mlx_backend.host_arrays import HostArray
from mlx_backend.importing import import_checkpoint, import_span
from mlx_backend.interface import Counters, Sampled, Snapshot
from mlx_backend.interface import Row as AnyRow
from mlx_backend.layers import CacheLayout
from mlx_backend.live_row import LiveRow
from mlx_backend.memory import (
    DeviceLimits,
    apply_limits,
    memory_report,
    release_limits,
    trim_pool,
)
from mlx_backend.messages import MemoryReport, Sampling, TokenIds
from mlx_backend.rows import PlainRow, check_state, fresh_row, restore_row
from mlx_backend.snapshots import MlxSpan, capture_checkpoint, capture_span

_open_backends: WeakSet[MlxBackend] = WeakSet()
"""Those that were not closed, of all threads: several may share one thread and its stream."""


class MlxBackend:
    """Implements `interface.Backend`. Make it on the thread that loaded `model`."""

    def __init__(
        self,
        model: Any,
        layout: CacheLayout,
        weight_bytes: int,
        device: DeviceLimits = DeviceLimits(),  # noqa: B008  (frozen)
    ) -> None:
        """`weight_bytes` is what one decoding step reads of the model."""
        self.counters = Counters()
        self._model = model
        self._layout = layout
        self._stream = _default_stream()
        self._decoder = Decoder(model, layout, weight_bytes, self.counters)
        self._applied = apply_limits(device, weight_bytes, _wired_bytes())
        _open_backends.add(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know about how this model runs."""
        return self._decoder.warnings

    def open_row(self, snapshot: Snapshot | None, room: int) -> LiveRow:
        self._enter()
        if snapshot is None:
            return LiveRow(self._layout, fresh_row(self._layout, room).caches, 0, room)
        row = restore_row(self._layout, snapshot, room)
        kept = snapshot.checkpoint.nbytes if snapshot.checkpoint else 0
        self.counters.bytes_restored += snapshot.length * self._layout.span_token_bytes + kept
        return LiveRow(self._layout, row.caches, row.length, room)

    def read(self, row: AnyRow, tokens: TokenIds) -> None:
        live = self._enter_with(row)
        assert not live.is_decoding, "the row is decoding"
        plain = PlainRow(self._layout, live.caches, live.length)
        plain.read(self._model, tokens)
        live.length = plain.length
        self.counters.chunks_read += 1
        self.counters.tokens_read += len(tokens)

    def capture_span(self, row: AnyRow, start: int, stop: int) -> MlxSpan:
        live = self._checked(row)
        span = capture_span(self._layout, live.caches, start, stop, live.index)
        self.counters.bytes_captured += span.nbytes
        return span

    def capture_checkpoint(self, row: AnyRow) -> MlxCheckpoint:
        live = self._checked(row)
        checkpoint = capture_checkpoint(self._layout, live.caches, live.length, live.index)
        self.counters.bytes_captured += checkpoint.nbytes
        return checkpoint

    def import_span(self, arrays: Sequence[HostArray], start: int, stop: int) -> MlxSpan:
        self._enter()
        return import_span(self._layout, arrays, start, stop)

    def import_checkpoint(
        self, length: int, described: str, arrays: Sequence[HostArray]
    ) -> MlxCheckpoint:
        self._enter()
        return import_checkpoint(self._layout, length, described, arrays)

    def growth_bytes(self, row: AnyRow, room: int) -> int:
        return self._enter_with(row).growth_bytes(room)

    def grow_row(self, row: AnyRow, room: int) -> None:
        live = self._enter_with(row)
        if room <= live.room:
            return
        if live.is_decoding:
            self._decoder.grow(live, room)
        else:
            try:
                live.grow(room)
            except Exception as error:
                raise StepFailed(f"making room for {room} tokens: {error}") from error
        self.counters.rows_grown += 1

    def start_decoding(
        self,
        row: AnyRow,
        last_token: int,
        sampling: Sampling,
        context: TokenIds,
        first_index: int = 0,
    ) -> None:
        live = self._enter_with(row)
        assert not live.is_decoding, "the row is decoding"
        self._decoder.add(live, last_token, sampling, context, first_index)

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        self._enter()
        return self._decoder.step(spare_bytes)

    def stop_decoding(self, row: AnyRow) -> Sampled:
        live = self._enter_with(row)
        assert live.is_decoding, "the row is not decoding"
        sampled = self._decoder.take_out(live)
        live.let_go()
        return sampled

    def compact(self) -> None:
        self._enter()
        self._decoder.compact()

    def release(self, row: AnyRow) -> None:
        self._enter()
        assert isinstance(row, LiveRow)
        self._decoder.remove(row)
        row.let_go()

    def memory(self) -> MemoryReport:
        self._enter()
        return memory_report(self._applied)

    def trim_pool(self) -> None:
        self._enter()
        trim_pool()

    def close(self) -> None:
        """Without clearing the streams the process aborts at exit about every second time.

        The thread gets a new default stream, so that a model can be loaded on it again. Who is not
        the last on its thread leaves the stream to the others.
        """
        self._enter()
        self._decoder.clear()
        del self._decoder, self._model
        mx.synchronize()
        _open_backends.discard(self)
        release_limits(self._applied, _wired_bytes())
        if any(other._stream == self._stream for other in _open_backends):
            mx.clear_cache()
            return
        mx.clear_streams()
        mx.set_default_stream(mx.new_stream(mx.default_device()))

    def _enter(self) -> None:
        assert _default_stream() == self._stream, "array work on a foreign thread"

    def _enter_with(self, row: AnyRow) -> LiveRow:
        self._enter()
        assert isinstance(row, LiveRow)
        assert not row.is_released, "the row was released"
        return row

    def _checked(self, row: AnyRow) -> LiveRow:
        live = self._enter_with(row)
        check_state(self._layout, live.caches, live.length, live.index)
        return live


def _wired_bytes() -> int:
    return sum(backend._applied.wired_bytes for backend in _open_backends)


def _default_stream() -> Any:
    return mx.default_stream(mx.default_device())
