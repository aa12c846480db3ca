"""What the engine remembers of its work: the last requests, the totals, the status it publishes.

Written by the engine's thread only; what it hands out is frozen.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import psutil

from daemon.deliveries import Generation
from daemon.generation import DEFAULT_SAMPLING
from daemon.prefix_cache.explain import Departure
from daemon.status import (
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    SamplingStatus,
    TotalsStatus,
)
from daemon.turns import Phase, Turn
from mlx_backend.interface import Backend, Counters
from mlx_backend.messages import ModelInfo, TokenIds

log = logging.getLogger(__name__)

RECENT_REQUESTS = 50
"""How many of those that ended the status shows."""

KEPT_REQUESTS = 200
"""How many of them are remembered."""


@dataclass(frozen=True, slots=True)
class Record:
    """A request as others see it, and the ids where its session left its own history, if it did.

    What these say is for who holds the daemon's token: it is neither logged nor put in a status.
    """

    status: RequestStatus
    departure: Departure | None = None

    def with_texts(self, text_of: Callable[[TokenIds], str]) -> RequestStatus:
        """The request with both sides of the departure as text, each behind what leads to it."""
        reason, departure = self.status.reason, self.departure
        if reason is None or departure is None:
            return self.status
        sides = (departure.stored, departure.sent)
        stored, sent = (text_of(np.concatenate((departure.lead, side))) for side in sides)
        return replace(self.status, reason=replace(reason, stored_text=stored, prompt_text=sent))


class Records:
    """The requests that ended, and the sums over all of them."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=KEPT_REQUESTS)
        self._totals = TotalsStatus()
        self._earlier = Counters()

    @property
    def closed(self) -> int:
        """Requests that have ended."""
        return self._totals.requests

    @property
    def recent(self) -> tuple[RequestStatus, ...]:
        """The newest last."""
        first = max(0, len(self._records) - RECENT_REQUESTS)
        return tuple(record.status for record in islice(self._records, first, None))

    @property
    def all(self) -> tuple[Record, ...]:
        """All that are remembered, the newest last."""
        return tuple(self._records)

    def close(self, turn: Turn) -> None:
        """Enter a turn that has ended, here and in the log."""
        record = record_of(turn, turn.ended or turn.arrived)
        self._records.append(record)
        _log(record.status, turn.session.id)
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

    def totals(self, present: Sequence[Counters] = ()) -> TotalsStatus:
        """Since the daemon started, over all loads of all models; `present` of those loaded."""
        counted = (self._earlier, *present)
        return replace(
            self._totals,
            chunks=sum(each.chunks_read for each in counted),
            steps=sum(each.steps for each in counted),
            batch_copies=sum(each.batch_copies for each in counted),
        )


def _log(request: RequestStatus, session: str) -> None:
    """One line for each request that ended: numbers, a code and a label, never a text."""
    first_token = "no token"
    if request.first_token_seconds is not None:
        first_token = f"first token after {request.first_token_seconds:.3f} s"
    unread = request.prompt - request.reused - request.read
    log.info(
        "request %s of session %.60r is %s: "
        "prompt %d = reused %d%s + read %d%s, generated %d, %s: %s",
        request.id,
        session,
        f"{request.phase} ({request.finish})" if request.finish == "repetition" else request.phase,
        request.prompt,
        request.reused,
        _from_disk(request),
        request.read,
        f" + {unread} not read" if unread > 0 else "",
        request.generated,
        first_token,
        request.reason.code if request.reason is not None else "never read",
    )


def _from_disk(request: RequestStatus) -> str:
    if not request.from_disk:
        return ""
    took = f"{request.disk_bytes} bytes in {request.disk_seconds:.3f} s"
    return f" ({request.from_disk} from disk, {took})"


def record_of(turn: Turn, now: float) -> Record:
    return Record(request_status(turn, now), turn.departure)


def request_status(turn: Turn, now: float) -> RequestStatus:
    """A turn as others see it."""
    usage = turn.usage
    begun = turn.started if turn.started is not None else now
    disk = turn.from_disk
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
        why_read=turn.reason.sentence if turn.reason is not None else "",
        error=turn.error,
        reason=turn.reason,
        arrived_at=turn.generation.arrived_at,
        finish="" if turn.finish is None else turn.finish.value,
        model=turn.request.model,
        from_disk=disk.tokens,
        disk_bytes=disk.nbytes,
        disk_seconds=disk.seconds,
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
        sampling=sampling_status(info),
    )


def sampling_status(info: ModelInfo) -> SamplingStatus:
    """What a silent request gets."""
    sampling = info.default_sampling or DEFAULT_SAMPLING
    return SamplingStatus(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        is_recommended=info.default_sampling is not None,
    )


def memory_status(
    backends: Sequence[Backend], turns: Sequence[Turn], budgets: Sequence[int | None]
) -> MemoryStatus:
    """Where the memory is, as the device and the system tell it. Without a model, what is left."""
    if not backends:
        return MemoryStatus(process_bytes=psutil.Process().memory_info().rss)
    reports = [backend.memory() for backend in backends]
    report = reports[0]  # of the whole device
    return MemoryStatus(
        device_active_bytes=report.active_bytes,
        device_pooled_bytes=report.pooled_bytes,
        device_peak_bytes=report.peak_bytes,
        row_bytes=sum(turn.row.nbytes for turn in turns if turn.row is not None),
        process_bytes=psutil.Process().memory_info().rss,
        reserved_bytes=sum(turn.row_bytes for turn in turns),
        budget_bytes=sum(limit or 0 for limit in budgets),
        pool_limit_bytes=report.pool_limit_bytes,
        wired_bytes=sum(each.wired_bytes for each in reports),
    )


def waiting_status(generation: Generation, seconds: float) -> RequestStatus:
    """Of a request that the engine's thread has not begun, `seconds` after it came."""
    request = generation.request
    return RequestStatus(
        id=request.id,
        phase="waiting",
        session=request.session,
        prompt=len(request.prompt),
        reused=0,
        read=0,
        generated=0,
        waited_seconds=seconds,
        first_token_seconds=None,
        seconds=seconds,
        arrived_at=generation.arrived_at,
    )
