"""One loaded model at work: turns in, events out. Lives and dies with its backend.

Prompts are read one at a time, by chunks; all rows decode together. Between two decode steps at
most one chunk is read and one row begins to decode. The tree is asked when the reading of a
prompt starts, not when it arrives; what was matched stays pinned until the turn ends, so that
what it adds has something to be added to. Runs on the engine's thread. What is read next is the
scheduler's decision; where it is captured the planning's, what is stored the commits', who waits
for whom the sharing's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from daemon.archive import Archive
from daemon.budget import Budget
from daemon.chunk_pace import ChunkPace
from daemon.commits import Commits
from daemon.deliveries import Outbox
from daemon.errors import DaemonError, GenerationFailed
from daemon.fetches import Fetches
from daemon.generation import (
    Failed,
    Finished,
    FinishReason,
    Generated,
    GenerationEvent,
    Progress,
    Started,
)
from daemon.planning import Planning
from daemon.prefix_cache.cache import Match, PrefixCache
from daemon.prefix_cache.policies import ByOptions, CheckpointPolicy
from daemon.records import Records
from daemon.repetition import is_endless
from daemon.rows import Rows
from daemon.scheduler import age, chunk_end, chunk_size, next_to_read
from daemon.sessions import Sessions
from daemon.sharing import Sharing
from daemon.status import CacheStatus
from daemon.turns import Phase, Turn
from mlx_backend.errors import StepFailed
from mlx_backend.interface import Backend, LoadedModel, Sampled
from mlx_backend.messages import CacheKind, TokenIds

log = logging.getLogger(__name__)


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
        budget: Budget,
        policy: ReadingPolicy,
        sessions: Sessions,
        records: Records,
        outbox: Outbox,
        announce: Callable[[], None],
        clock: Callable[[], float],
        archive: Archive | None = None,
    ) -> None:
        kind = model.info.cache_kind
        self.turns: list[Turn] = []
        self._decoding: dict[int, Turn] = {}
        self._backend: Backend = model.backend
        self._stop_ids = model.info.stop_ids
        self._cache = cache
        self._policy = policy
        self._pace = ChunkPace(policy.chunk_tokens)
        self._outbox = outbox
        self._records = records
        self._clock = clock
        self._announce = announce
        self._commits = Commits(model.backend, cache, kind, self._on_stored)
        self.rows = Rows(self.turns, model.backend, cache, budget, self._on_misfit)
        self.fetches = Fetches(
            archive,
            model.backend,
            cache,
            kind,
            self.rows,
            self._commits,
            lambda: self._pace.tokens_per_second,
            clock,
        )
        can_cut = kind is CacheKind.SLICEABLE
        self._planning = Planning(policy.checkpoints, kind, cache, sessions, self._commits.prefix)
        self._sharing = Sharing(self.turns, cache, can_cut, self._commits.prefix)

    def add(self, turn: Turn) -> None:
        """Queue a prompt."""
        self.turns.append(turn)
        self.fetches.arrived(turn)
        self._sharing.arrived(turn)

    def cancel(self, turn: Turn, *, is_whole: bool = False) -> None:
        """End a turn in whatever phase it is, keeping what was read and generated.

        `is_whole`: what it said is all that was wanted. Its state goes past that nevertheless.
        """
        self._commits.end(turn, is_cut=True)
        phase, reason = Phase.CANCELLED, FinishReason.CANCELLED
        if is_whole:
            phase, reason = Phase.DONE, FinishReason.STOP
        self._end(turn, phase, Finished(reason, turn.usage))
        self._sharing.moved(turn)
        self.rows.settle()

    def stop(self, error: DaemonError) -> None:
        """End every turn because the daemon closes, keeping what they have."""
        for turn in list(self.turns):
            self._commits.end(turn, is_cut=True)
            self._fail(turn, error)

    def abandon(self, unavailable: DaemonError, is_tree_sound: bool) -> None:
        """End every turn because the model broke: no array is touched, nothing is kept.

        Those that had begun have failed; those that wait hear that the model is `unavailable`.
        """
        self._decoding.clear()
        self.fetches.abandon(is_tree_sound=is_tree_sound)
        for turn in list(self.turns):
            turn.match = turn.match if is_tree_sound else None
            had_begun, turn.row = turn.started is not None, None
            failed = _generation_failed("the model broke and is loaded again")
            self._fail(turn, failed if had_begun else unavailable)

    @property
    def has_work(self) -> bool:
        """Whether anything can be done now: not where all wait for the disk, or for what is set
        aside for it."""
        if self.rows.open_turns or self.fetches.has_work or self.rows.first_set_aside():
            return True
        turn = next_to_read(self.turns, may_open=True)
        return turn is not None and not self.rows.is_refused(turn)

    def cache_status(self) -> CacheStatus:
        """What the tree holds, with the captures that never reached it."""
        status = self._cache.status()
        return replace(status, skipped_captures=status.skipped_captures + self._commits.skipped)

    def decode_step(self) -> None:
        """One token for each decoding row."""
        if not self._decoding:
            return
        self._make_room()
        self.rows.settle()  # what was captured for those that arrived
        for sampled in self.rows.step():
            self._take(self._decoding[id(sampled.row)], sampled)
        self.rows.settle()

    def read_chunk(self) -> None:
        """One chunk of the prompt whose turn it is; after its last one the row decodes."""
        self.fetches.settle()
        turn = self._next_to_read()
        self.fetches.go_on(is_decoding=bool(self._decoding))
        if turn is None:
            return
        self.rows.settle()
        try:
            if turn.position < turn.readable:
                self._read(turn)
            if turn.position == turn.readable:
                self._begin_decoding(turn)
        except StepFailed as error:
            log.warning("request %s failed while it was read: %s", turn.request.id, error)
            self._fail(turn, _generation_failed(str(error)))
        self._sharing.moved(turn)
        self.rows.settle(turn)

    def _next_to_read(self) -> Turn | None:
        """The turn whose chunk is read next, with its row; None if all wait, for memory perhaps."""
        opened = len(self.rows.open_turns)
        may_open = opened < self._policy.max_rows
        turn = self._first(may_open)
        while turn is not None and self._needs_disk(turn):
            turn = self._first(may_open)
        if turn is None or not turn.is_queued or self._open(turn):
            return turn
        if not opened and not self.rows.reserved_bytes:
            self._give_up(turn)
        return next_to_read(self.turns, may_open=False)

    def _first(self, may_open: bool) -> Turn | None:
        """Who was read in from disk begins first: it keeps memory from the others until then."""
        set_aside = self.rows.first_set_aside() if may_open else None
        return set_aside or next_to_read(self.turns, may_open)

    def _needs_disk(self, turn: Turn) -> bool:
        """Whether a turn whose turn has come waits for the disk first."""
        return turn.is_queued and not self.rows.is_refused(turn) and self.fetches.needs(turn)

    def _open(self, turn: Turn) -> bool:
        """Give a turn its row; False if there is no memory for it now."""
        match = self.rows.open(turn)
        if match is None:
            return False
        assert turn.row is not None
        was_parked = turn.phase is Phase.PARKED
        turn.phase, turn.position = Phase.READING, turn.row.length
        self._sharing.began()
        if not was_parked:
            self._begin(turn, match)
        self._announce()  # before the first chunk, which may take long
        return True

    def _begin(self, turn: Turn, match: Match) -> None:
        """Its turn has come for the first time: explain, plan, and say so."""
        prompt = len(turn.request.prompt)
        turn.started = self._clock()
        turn.reused = turn.position
        restore_failed = turn.reused < match.length
        self.fetches.began(turn)
        turn.explain(match, restore_failed=restore_failed)
        self._planning.began(turn, match.common)
        self._outbox.put(turn.generation, Started(turn.reused, prompt, turn.reason))

    def _read(self, turn: Turn) -> None:
        row = turn.row
        assert row is not None
        size = chunk_size(self._policy.chunk_tokens, self._pace.tokens, bool(self._decoding))
        end = chunk_end(turn, size)
        began = self._clock()
        self._backend.read(row, turn.tokens[turn.position : end])
        self._pace.took(end - turn.position, self._clock() - began)
        age(self.turns, turn, end - turn.position)
        turn.position = end
        self._commits.stop(turn)
        if not turn.outputs:
            self._outbox.put(turn.generation, Progress(end, len(turn.request.prompt)))

    def _begin_decoding(self, turn: Turn) -> None:
        row, tokens = turn.row, turn.tokens
        assert row is not None
        said = len(turn.outputs)
        self._backend.start_decoding(row, int(tokens[-1]), turn.request.sampling, tokens, said)
        turn.phase, turn.position = Phase.DECODING, len(tokens)
        self._decoding[id(row)] = turn

    def _make_room(self) -> None:
        """Let every row grow that has to; where memory lacks, what is being read in gives way, and
        then the youngest of all is parked."""
        for turn in self.rows.full(self._decoding.values()):
            while turn.row is not None and not self.rows.grow(turn):
                if self.fetches.give_way():
                    continue
                opened = self.rows.open_turns
                if len(opened) == 1:
                    self._give_up(turn)
                else:
                    self._park(max(opened, key=lambda other: other.arrival))

    def _park(self, turn: Turn) -> None:
        """Take a turn's row and queue it again; it goes on where it was, without a token lost.

        What was drawn already is said at once: it is the last token that was not run.
        """
        log.info("request %s is parked for want of memory", turn.request.id)
        drawn: list[Sampled] = []

        def release() -> None:
            self._decoding.pop(id(turn.row), None)
            if turn.phase is Phase.DECODING:
                drawn.append(self.rows.stop_decoding(turn))
            self.rows.close(turn)

        self._commits.parked(turn, release)
        turn.phase = Phase.PARKED
        self._records.note_parked()
        for sampled in drawn:
            self._take(turn, sampled)
        if turn.phase is Phase.PARKED:
            turn.past = turn.history() if turn.outputs else None
            self._sharing.arrived(turn)
        self._sharing.moved(turn)

    def _give_up(self, turn: Turn) -> None:
        """A turn that has no room although nobody else has any: its answer ends here."""
        log.warning("request %s: no memory for a longer answer", turn.request.id)
        if turn.outputs:
            self._complete(turn, FinishReason.LENGTH)
        else:
            self._fail(turn, _generation_failed("there is no memory for it"))

    def _take(self, turn: Turn, sampled: Sampled) -> None:
        """One token of a turn, or why its row failed."""
        token = sampled.token
        if sampled.error is not None:
            self._fail(turn, _generation_failed(sampled.error))
            return
        if turn.first_token is None:
            turn.first_token = self._clock()
        turn.outputs.append(token)
        if token in self._stop_ids:
            self._complete(turn, FinishReason.STOP)
            return
        turn.generated += 1
        scores = () if sampled.score is None else (sampled.score,)
        self._outbox.put(turn.generation, Generated((token,), scores))
        if turn.generated >= turn.request.max_tokens:
            self._complete(turn, FinishReason.LENGTH)
        elif is_endless(turn.outputs, is_limited=turn.request.is_limited):
            log.warning("request %s repeats itself without end: it is ended", turn.request.id)
            self._complete(turn, FinishReason.REPETITION)

    def _complete(self, turn: Turn, reason: FinishReason) -> None:
        self._commits.end(turn)
        self._end(turn, Phase.DONE, Finished(reason, turn.usage))

    def _fail(self, turn: Turn, error: DaemonError) -> None:
        turn.error = error.message
        self._end(turn, Phase.FAILED, Failed(error, turn.usage))

    def _end(self, turn: Turn, phase: Phase, event: GenerationEvent) -> None:
        if turn.row is not None:
            self._decoding.pop(id(turn.row), None)
        self.fetches.drop(turn)
        self.rows.close(turn)
        now = self._clock()
        self._planning.ended(turn, now, is_cancelled=phase is Phase.CANCELLED)
        turn.end(phase, now, event.reason if isinstance(event, Finished) else None)
        self.turns.remove(turn)
        self._records.close(turn)
        self._outbox.put(turn.generation, event)

    def _on_misfit(self, tokens: TokenIds) -> None:
        self.fetches.distrust(tokens)

    def _on_stored(self, key: TokenIds) -> None:
        self._sharing.learned(key)


def _generation_failed(words: str) -> GenerationFailed:
    return GenerationFailed(f"the model failed on this request ({words}); send it again")
