"""What the engine remembers of its work: the last requests, the totals, the status it publishes.

Written by the engine's thread only; what it hands out is frozen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import psutil

from daemon.status import MemoryStatus, ModelStatus, RequestStatus, TotalsStatus
from daemon.turns import Phase, Turn
from mlx_backend.interface import Backend, Counters
from mlx_backend.messages import ModelInfo

RECENT_REQUESTS = 50


class Records:
    """The requests that ended, and the sums over all of them."""

    def __init__(self) -> None:
        self._recent: deque[RequestStatus] = deque(maxlen=RECENT_REQUESTS)
        self._totals = TotalsStatus()
        self._earlier = Counters()

    @property
    def closed(self) -> int:
        """Requests that have ended."""
        return self._totals.requests

    @property
    def recent(self) -> tuple[RequestStatus, ...]:
        """The newest last."""
        return tuple(self._recent)

    def close(self, turn: Turn) -> None:
        """Enter a turn that has ended."""
        self._recent.append(request_status(turn, turn.ended or turn.arrived))
        usage, totals = turn.usage, self._totals
        first_token = totals.first_token
        if turn.first_token is not None:
            first_token = first_token.with_value(turn.first_token - turn.arrived)
        self._totals = replace(
            totals,
            requests=totals.requests + 1,
            cancelled=totals.cancelled + (turn.phase is Phase.CANCELLED),
            failed=totals.failed + (turn.phase is Phase.FAILED),
            prompt=totals.prompt + usage.prompt,
            reused=totals.reused + usage.reused,
            read=totals.read + usage.read,
            generated=totals.generated + usage.generated,
            first_token=first_token,
        )

    def note_parked(self) -> None:
        """A row was taken from a request for want of memory."""
        self._totals = replace(self._totals, parked=self._totals.parked + 1)

    def retire(self, counters: Counters) -> None:
        """Keep the counts of a backend that goes away."""
        self._earlier = Counters(
            chunks_read=self._earlier.chunks_read + counters.chunks_read,
            steps=self._earlier.steps + counters.steps,
            batch_copies=self._earlier.batch_copies + counters.batch_copies,
        )

    def totals(self, counters: Counters | None = None) -> TotalsStatus:
        """Since the daemon started, over all loads of the model; `counters` of the present one."""
        counters = counters or Counters()
        return replace(
            self._totals,
            chunks=self._earlier.chunks_read + counters.chunks_read,
            steps=self._earlier.steps + counters.steps,
            batch_copies=self._earlier.batch_copies + counters.batch_copies,
        )


def request_status(turn: Turn, now: float) -> RequestStatus:
    """A turn as others see it."""
    usage = turn.usage
    begun = turn.started if turn.started is not None else now
    return RequestStatus(
        id=turn.request.id,
        phase=turn.phase.value,
        session=turn.request.session,
        prompt=usage.prompt,
        reused=usage.reused,
        read=usage.read,
        generated=usage.generated,
        waited_seconds=begun - turn.arrived,
        first_token_seconds=None if turn.first_token is None else turn.first_token - turn.arrived,
        seconds=now - turn.arrived,
        why_read=turn.why_read,
        error=turn.error,
    )


def model_status(info: ModelInfo) -> ModelStatus:
    """A model that is ready, as others see it."""
    return ModelStatus(
        "ready",
        name=info.name,
        path=info.path,
        identity=info.identity,
        cache_kind=info.cache_kind.value,
        cache_classes=info.cache_classes,
        context_size=info.context_size,
        weight_bytes=info.weight_bytes,
        span_token_bytes=info.span_token_bytes,
        warnings=info.warnings,
    )


def memory_status(
    backend: Backend, turns: Sequence[Turn], budget_bytes: int | None
) -> MemoryStatus:
    """Where the memory is, as the backend and the system tell it."""
    report = backend.memory()
    return MemoryStatus(
        device_active_bytes=report.active_bytes,
        device_pooled_bytes=report.pooled_bytes,
        device_peak_bytes=report.peak_bytes,
        row_bytes=sum(turn.row.nbytes for turn in turns if turn.row is not None),
        process_bytes=psutil.Process().memory_info().rss,
        reserved_bytes=sum(turn.row_bytes for turn in turns),
        budget_bytes=budget_bytes or 0,
        pool_limit_bytes=report.pool_limit_bytes,
        wired_bytes=report.wired_bytes,
    )
