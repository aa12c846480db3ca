"""What the daemon says of itself: one type for people, for `--json` and for the menu bar.

Plain frozen dataclasses that import nothing, so that the command line stays quick; pydantic's
`TypeAdapter` turns them to JSON and back. Sizes are bytes, times seconds, counts tokens unless
the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """`state`: loading, ready, failed, closed. The rest is empty until the model is ready."""

    state: str
    name: str = ""
    path: str = ""
    identity: str = ""
    cache_kind: str = ""
    cache_classes: tuple[str, ...] = ()
    context_size: int = 0
    weight_bytes: int = 0
    span_token_bytes: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What the prefix cache holds. Tokens and bytes count each shared prefix once.

    `bytes` = span_bytes + checkpoint_bytes + index_bytes ≤ max_bytes.
    """

    entries: int = 0
    max_entries: int | None = None
    tokens: int = 0
    bytes: int = 0
    max_bytes: int = 0
    span_bytes: int = 0
    checkpoint_bytes: int = 0
    checkpoints: int = 0
    index_bytes: int = 0
    arrays: int = 0
    hits: int = 0
    misses: int = 0
    evicted_entries: int = 0
    thinned_checkpoints: int = 0
    failed_restores: int = 0
    skipped_captures: int = 0


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """One request, running or done. `phase`: waiting, reading, decoding, done, cancelled, failed.

    `why_read` says in a sentence why what was read had to be read.
    """

    id: str
    phase: str
    session: str | None
    prompt: int
    reused: int
    read: int
    generated: int
    waited_seconds: float
    first_token_seconds: float | None
    seconds: float
    why_read: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TotalsStatus:
    """Since the daemon started."""

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    prompt: int = 0
    reused: int = 0
    read: int = 0
    generated: int = 0
    chunks: int = 0
    steps: int = 0
    batch_copies: int = 0


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """`device_*` is the array allocator's view, `process_bytes` the resident set."""

    device_active_bytes: int = 0
    device_pooled_bytes: int = 0
    device_peak_bytes: int = 0
    row_bytes: int = 0
    process_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot published by the engine's thread; reading it never waits for a chunk."""

    model: ModelStatus
    cache: CacheStatus = CacheStatus()
    totals: TotalsStatus = TotalsStatus()
    memory: MemoryStatus = MemoryStatus()
    running: tuple[RequestStatus, ...] = ()
    waiting: tuple[RequestStatus, ...] = ()
    recent: tuple[RequestStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """`instance` is drawn anew at each start: liveness is that id over the socket, no pid file."""

    version: str
    instance: str
    pid: int
    port: int
    uptime_seconds: float
    engine: EngineStatus
