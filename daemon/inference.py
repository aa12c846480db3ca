"""One loaded model at work: turns in, events out. Lives and dies with its backend.

Prompts are read one at a time, by chunks; all rows decode together. Between two decode steps at
most one chunk is read and one row begins to decode. The tree is asked when the reading of a
prompt starts, not when it arrives; what was matched stays pinned until the turn ends, so that
what it adds has something to be added to. Runs on the engine's thread. What is read next is the
scheduler's decision; what is stored is the commits', who waits for whom the sharing's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from daemon.commits import Commits
from daemon.deliveries import Outbox
from daemon.errors import DaemonError, GenerationFailed
from daemon.generation import (
    Failed,
    Finished,
    FinishReason,
    Generated,
    GenerationEvent,
    Progress,
    Started,
)
from daemon.prefix_cache.cache import Match, PrefixCache
from daemon.prefix_cache.explain import why_read
from daemon.prefix_cache.policies import ByOptions, CheckpointPolicy, Reading
from daemon.records import Records
from daemon.scheduler import age, chunk_end, next_to_read
from daemon.sessions import FORK_TOKENS, Sessions
from daemon.sharing import Sharing
from daemon.status import CacheStatus
from daemon.turns import Phase, Turn
from mlx_backend.errors import RestoreFailed, StepFailed
from mlx_backend.interface import Backend, LoadedModel, Row
from mlx_backend.messages import CacheKind, TokenIds

log = logging.getLogger(__name__)

ANSWER_ROOM_TOKENS = 256
"""Room that a row is given beyond its prompt, so that the first append copies nothing."""


@dataclass(frozen=True, slots=True)
class ReadingPolicy:
    """How prompts are read: rows at once, chunk size, where prompts are captured."""

    chunk_tokens: int = 2048
    max_rows: int = 8
    checkpoints: CheckpointPolicy = field(default_factory=ByOptions)


class Inference:
    """The live turns of one model, and the three things that happen to them."""

    def __init__(
        self,
        model: LoadedModel,
        cache: PrefixCache,
        policy: ReadingPolicy,
        sessions: Sessions,
        records: Records,
        outbox: Outbox,
        announce: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        kind = model.info.cache_kind
        self.turns: list[Turn] = []
        self._decoding: dict[int, Turn] = {}
        self._backend: Backend = model.backend
        self._stop_ids = model.info.stop_ids
        self._kind = kind
        self._cache = cache
        self._policy = policy
        self._outbox = outbox
        self._records = records
        self._clock = clock
        self._sessions = sessions
        self._announce = announce
        self._commits = Commits(model.backend, cache, kind, self._on_stored)
        can_cut = kind is CacheKind.SLICEABLE
        self._sharing = Sharing(self.turns, cache, can_cut, self._commits.prefix)

    def add(self, turn: Turn) -> None:
        """Queue a prompt."""
        self.turns.append(turn)
        self._sharing.arrived(turn)

    def cancel(self, turn: Turn) -> None:
        """End a turn in whatever phase it is, keeping what was read and generated."""
        self._commits.end(turn)
        self._end(turn, Phase.CANCELLED, Finished(FinishReason.CANCELLED, turn.usage))
        self._sharing.moved(turn)

    def stop(self, error: DaemonError) -> None:
        """End every turn because the daemon closes, keeping what they have."""
        for turn in list(self.turns):
            self._commits.end(turn)
            self._fail(turn, error)

    def abandon(self, unavailable: DaemonError, is_tree_sound: bool) -> None:
        """End every turn because the model broke: no array is touched, nothing is kept.

        Those that had begun have failed; those that wait hear that the model is `unavailable`.
        """
        self._decoding.clear()
        for turn in list(self.turns):
            turn.match = turn.match if is_tree_sound else None
            had_begun, turn.row = turn.row is not None, None
            failed = _generation_failed("the model broke and is loaded again")
            self._fail(turn, failed if had_begun else unavailable)

    def cache_status(self) -> CacheStatus:
        """What the tree holds, with the captures that never reached it."""
        status = self._cache.status()
        return replace(status, skipped_captures=status.skipped_captures + self._commits.skipped)

    def decode_step(self) -> None:
        """One token for each decoding row."""
        if not self._decoding:
            return
        for sampled in self._backend.step():
            turn = self._decoding[id(sampled.row)]
            if sampled.error is None:
                self._take(turn, sampled.token)
            else:
                self._fail(turn, _generation_failed(sampled.error))

    def read_chunk(self) -> None:
        """One chunk of the prompt whose turn it is; after its last one the row decodes."""
        opened = sum(turn.row is not None for turn in self.turns)
        turn = next_to_read(self.turns, may_open=opened < self._policy.max_rows)
        if turn is None:
            return
        try:
            if turn.phase is Phase.WAITING:
                self._open(turn)
            if turn.position < turn.readable:
                self._read(turn)
            if turn.position == turn.readable:
                self._begin_decoding(turn)
        except StepFailed as error:
            log.warning("request %s failed while it was read: %s", turn.request.id, error)
            self._fail(turn, _generation_failed(str(error)))
        self._sharing.moved(turn)

    def _open(self, turn: Turn) -> None:
        prompt = len(turn.request.prompt)
        turn.started = self._clock()
        match = turn.match = self._cache.match(turn.tokens)
        turn.row = self._restored(turn, match)
        turn.position = turn.reused = turn.row.length
        restore_failed = turn.reused < match.length
        turn.why_read = why_read(match, prompt, restore_failed=restore_failed)
        turn.phase = Phase.READING
        self._sharing.began()
        self._plan(turn, match.common)
        self._outbox.put(turn.generation, Started(turn.reused, prompt))
        self._announce()  # before the first chunk, which may take long

    def _plan(self, turn: Turn, common: int) -> None:
        """Decide what is captured of it; `turn.stops` are the forks that others wait for."""
        reading = Reading(
            turn.position,
            turn.request.prompt,
            self._kind,
            common=common,
            awaited=tuple(turn.stops),
            is_opening=self._opens_session(turn, common),
        )
        plan = self._policy.checkpoints.plan(reading)
        turn.stops = {stop.offset: stop.kind for stop in plan.stops}
        turn.keeps_end = plan.keeps_end
        if plan.at_start is not None:
            self._commits.prefix(turn, turn.position, plan.at_start)

    def _opens_session(self, turn: Turn, common: int) -> bool:
        """Whether this prompt opens its session; a turn that begins again keeps its answer."""
        if turn.opens_session is None:
            shared = common - turn.request.prompt.marks.head_end
            match = turn.match if shared >= FORK_TOKENS else None
            parent = (match.holder or match.conversation) if match is not None else ""
            turn.opens_session = self._sessions.begin(turn.session, parent or None)
        return turn.opens_session

    def _restored(self, turn: Turn, match: Match) -> Row:
        room = len(turn.request.prompt) + min(turn.request.max_tokens, ANSWER_ROOM_TOKENS)
        try:
            row = self._backend.open_row(match.snapshot, room)
            if row.length == match.length:
                return row
            self._backend.release(row)
            raise RestoreFailed(f"{row.length} tokens came back, not {match.length}")
        except RestoreFailed as error:
            log.warning("request %s: restore failed, reading it all: %s", turn.request.id, error)
            self._cache.reject(match)
            turn.match = None
        return self._backend.open_row(None, room)

    def _read(self, turn: Turn) -> None:
        row = turn.row
        assert row is not None
        end = chunk_end(turn, self._policy.chunk_tokens, bool(self._decoding))
        self._backend.read(row, turn.tokens[turn.position : end])
        age(self.turns, turn, end - turn.position)
        turn.position = end
        self._commits.stop(turn)
        self._outbox.put(turn.generation, Progress(end, len(turn.request.prompt)))

    def _begin_decoding(self, turn: Turn) -> None:
        row, prompt = turn.row, turn.tokens
        assert row is not None
        self._backend.start_decoding(row, int(prompt[-1]), turn.request.sampling, prompt)
        turn.phase = Phase.DECODING
        self._decoding[id(row)] = turn

    def _take(self, turn: Turn, token: int) -> None:
        if turn.first_token is None:
            turn.first_token = self._clock()
        turn.outputs.append(token)
        if token in self._stop_ids:
            self._complete(turn, FinishReason.STOP)
            return
        turn.generated += 1
        self._outbox.put(turn.generation, Generated((token,)))
        if turn.generated >= turn.request.max_tokens:
            self._complete(turn, FinishReason.LENGTH)

    def _complete(self, turn: Turn, reason: FinishReason) -> None:
        self._commits.end(turn)
        self._end(turn, Phase.DONE, Finished(reason, turn.usage))

    def _fail(self, turn: Turn, error: DaemonError) -> None:
        turn.error = error.message
        self._end(turn, Phase.FAILED, Failed(error, turn.usage))

    def _end(self, turn: Turn, phase: Phase, event: GenerationEvent) -> None:
        if turn.row is not None:
            self._decoding.pop(id(turn.row), None)
            self._backend.release(turn.row)
            turn.row = None
        if turn.match is not None:
            self._cache.release(turn.match)
            turn.match = None
        self._leave_session(turn, is_cancelled=phase is Phase.CANCELLED)
        turn.phase, turn.ended = phase, self._clock()
        self.turns.remove(turn)
        self._records.close(turn)
        self._outbox.put(turn.generation, event)

    def _leave_session(self, turn: Turn, *, is_cancelled: bool) -> None:
        was_unread = turn.phase is not Phase.DECODING
        self._sessions.end(
            turn.session,
            turn.usage,
            self._clock(),
            is_cancelled=is_cancelled,
            reopens=was_unread and bool(turn.opens_session),
        )

    def _on_stored(self, key: TokenIds) -> None:
        self._sharing.learned(key)


def _generation_failed(words: str) -> GenerationFailed:
    return GenerationFailed(f"the model failed on this request ({words}); send it again")
