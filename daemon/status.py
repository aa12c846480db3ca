"""What the daemon says of itself: one type for people, for `--json` and for the menu bar.

Plain frozen dataclasses that import nothing heavy, so that the command line stays quick; pydantic's
`TypeAdapter` turns them to JSON and back. What is told of the disk is in `disk_status`. Sizes are
bytes, times seconds, counts tokens unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from daemon.disk_status import DiskStatus, StageStatus
from daemon.histogram import Histogram


@dataclass(frozen=True, slots=True)
class SamplingStatus:
    """How tokens are drawn where a request is silent; `is_recommended` by the model's makers.

    A `top_k` of 0 is all of them.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    is_recommended: bool = False


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """`state`: loading, ready, unloaded (until it is asked for), failed, closed.

    The rest is empty until the model is ready for the first time. `key` tells models apart.
    `stages`: what its idleness will lead to, and when.
    """

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
    sampling: SamplingStatus | None = None
    key: str = ""
    idle_seconds: float = 0.0
    stages: tuple[StageStatus, ...] = ()

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered: a model that is unloaded is loaded for the next one."""
        return self.state in ("ready", "unloaded")


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What the prefix cache holds. Tokens and bytes count each shared prefix once.

    `bytes` = span_bytes + checkpoint_bytes + index_bytes ≤ max_bytes. `entries` are shared ones;
    `live_leaves` are kept for their sessions and count towards bytes and arrays only. The
    `evicted_by_*` count states that were lost, by cause: whole leaves (`evicted_entries`) and
    single checkpoints (`thinned_checkpoints`) for the limits, live leaves for the other three.
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
    max_arrays: int = 0
    live_leaves: int = 0
    hits: int = 0
    misses: int = 0
    evicted_entries: int = 0
    evicted_by_entries: int = 0
    evicted_by_bytes: int = 0
    evicted_by_arrays: int = 0
    evicted_by_idle: int = 0
    evicted_by_reset: int = 0
    evicted_by_sessions: int = 0
    thinned_checkpoints: int = 0
    failed_restores: int = 0
    skipped_captures: int = 0


def combined(statuses: Sequence[CacheStatus]) -> CacheStatus:
    """What several trees hold together."""
    if len(statuses) == 1:
        return statuses[0]
    sums = {each.name: 0 for each in fields(CacheStatus) if each.name != "max_entries"}
    for status in statuses:
        for name in sums:
            sums[name] += getattr(status, name)
    limits = [each.max_entries for each in statuses]
    known = [limit for limit in limits if limit is not None]
    return CacheStatus(**sums, max_entries=sum(known) if len(known) == len(limits) else None)


REASONS = (
    "first_seen",  # nothing stored begins like this prompt
    "continues",  # all of the past was reused
    "diverged",  # left what is stored in the middle of message `message_index`
    "no_checkpoint",  # more is stored, but no row can be restored there: nearest at `nearest`
    "evicted",  # it was stored, and dropped `evicted_seconds` ago by `evicted_by`
    "not_kept",  # over budget when it was read: never stored
    "no_reuse",  # this model's state, or the limits, allow no reuse
    "restore_failed",  # what was stored could not be restored
)
"""The closed list of `ReadReason.code`."""


@dataclass(frozen=True, slots=True)
class ReadReason:
    """Why a request read what it read. `sentence` says all of it but the two texts.

    `left_at`: the prompt offset where it left what the tree holds; `message_index` and
    `message_role`: the message that offset lies in, None where there is none. `stored_text` and
    `prompt_text`: the first differing tokens on both sides when a known session diverged early,
    which may be before `left_at`, if others went on like this from there. A few tokens lead to
    them, the same in both. Shown only to who holds the daemon's token, kept in memory only.
    """

    code: str
    sentence: str
    left_at: int = 0
    message_index: int | None = None
    message_role: str | None = None
    nearest: int | None = None
    evicted_seconds: float | None = None
    evicted_by: str | None = None
    stored_text: str | None = None
    prompt_text: str | None = None


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """One request, running or done. `phase`: waiting, parked, reading, decoding, done, cancelled,
    failed.

    `why_read` says in a sentence why what was read had to be read, `reason` in detail.
    `arrived_at` is a date in seconds of the Unix epoch. `finish` says how an answer ended: stop,
    length, repetition (it said the same without end) or cancelled; "" if it has not, or failed.
    `model` is its model's key. Of what was reused, `from_disk` tokens were read from there,
    `disk_bytes` in `disk_seconds`.
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
    reason: ReadReason | None = None
    arrived_at: float = 0.0
    finish: str = ""
    model: str = ""
    from_disk: int = 0
    disk_bytes: int = 0
    disk_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session: a label with counters, and what is kept of its last turns.

    `family` is the id its members share, `parent` the session whose tokens it forked from.
    `live_tokens` and `live_bytes` are those of all its live leaves, what they have in common once:
    of the tokens all, of the bytes its own, which nobody shares.
    """

    id: str
    label: str
    family: str | None = None
    parent: str | None = None
    turns: int = 0
    cancelled: int = 0
    prompt: int = 0
    reused: int = 0
    read: int = 0
    generated: int = 0
    live_tokens: int = 0
    live_bytes: int = 0
    running: int = 0
    age_seconds: float = 0.0
    idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """A node of the prefix tree, in the order of a walk from the root; `parent` is its id or None.

    `tokens` from the root to its end, `own_tokens` and `own_bytes` of its own edge and checkpoint.
    `kind` is what it was captured as, "" for a mere fork; `live_of` the session that holds it.
    """

    id: int
    parent: int | None
    tokens: int
    own_tokens: int
    own_bytes: int
    kind: str
    session: str
    has_checkpoint: bool
    live_of: str | None
    pins: int
    hits: int
    age_seconds: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class TotalsStatus:
    """Since the daemon started.

    `requests` ended; those that were `refused`, with an error before anything of them was read,
    are not among them. `refused_by_status` tells by which HTTP status.
    """

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    refused_by_status: dict[str, int] = field(default_factory=dict)
    prompt: int = 0
    reused: int = 0
    read: int = 0
    generated: int = 0
    chunks: int = 0
    steps: int = 0
    batch_copies: int = 0
    parked: int = 0
    first_token: Histogram = Histogram()  # noqa: RUF009  (frozen)


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """`device_*` is the array allocator's view, `process_bytes` the resident set.

    `row_bytes` are the running rows', `reserved_bytes` what they may grow to before they ask
    again; rows and prefix cache together stay within `budget_bytes`. `wired_bytes` is 0 unless
    wiring the weights was asked for. A limit of 0 is no limit.
    """

    device_active_bytes: int = 0
    device_pooled_bytes: int = 0
    device_peak_bytes: int = 0
    row_bytes: int = 0
    process_bytes: int = 0
    reserved_bytes: int = 0
    budget_bytes: int = 0
    pool_limit_bytes: int = 0
    wired_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot published by the engine's thread; reading it never waits for a chunk.

    `model` is the last used of those that are loaded, `models` are all that were asked for.
    `cache` is the sum over all of their trees.
    """

    model: ModelStatus
    cache: CacheStatus = CacheStatus()
    totals: TotalsStatus = TotalsStatus()
    memory: MemoryStatus = MemoryStatus()
    running: tuple[RequestStatus, ...] = ()
    waiting: tuple[RequestStatus, ...] = ()
    recent: tuple[RequestStatus, ...] = ()
    sessions: tuple[SessionStatus, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    disk: DiskStatus = DiskStatus()  # noqa: RUF009  (frozen)


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """The machine under the daemon, as far as it tells: on macOS only.

    `memory_pressure`: normal, warning, critical; `heat`: nominal, fair, serious, critical; both ""
    where unknown. `given_back_bytes`: what the prefix cache gave up because memory was short.
    """

    memory_pressure: str = ""
    given_back_bytes: int = 0
    is_low_power: bool | None = None
    heat: str = ""
    is_kept_awake: bool = False


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """`instance` is drawn anew at each start: liveness is that id over the socket, no pid file.

    `settings` is a digest of those it runs with, to see whether others are in force by now.
    """

    version: str
    instance: str
    pid: int
    port: int
    uptime_seconds: float
    engine: EngineStatus
    settings: str = ""
    machine: MachineStatus = MachineStatus()


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model on this machine: loaded or not (`state` as in ModelStatus, "" if never asked for).

    `id` is what clients call it; `repo` is "" for a folder that is no hub repository's.
    """

    id: str
    name: str = ""
    repo: str = ""
    folder: str = ""
    weight_bytes: int = 0
    context_size: int = 0
    state: str = ""
    is_default: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelList:
    """The models on this machine, the default one first; in the same form as SessionList."""

    data: tuple[ListedModel, ...] = ()
    object: str = "list"


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The prefix cache with its nodes, in the order of a walk from the root."""

    cache: CacheStatus = CacheStatus()
    entries: tuple[EntryStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheCheck:
    """Whether every invariant of the running cache holds; `problem` says which does not."""

    is_sound: bool
    cache: CacheStatus = CacheStatus()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SessionList:
    """The open sessions, in the form in which the OpenAI API lists things."""

    data: tuple[SessionStatus, ...] = ()
    object: str = "list"


@dataclass(frozen=True, slots=True)
class RequestList:
    """The last requests, the newest last; in the same form as SessionList.

    `shows_texts`: whether reasons have the texts of both sides, where there are any.
    """

    data: tuple[RequestStatus, ...] = ()
    object: str = "list"
    shows_texts: bool = False
