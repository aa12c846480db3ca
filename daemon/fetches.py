"""Turns that wait for the disk: what of their prompts is there comes into the prefix tree first.

A turn that finds more on disk than in memory, by enough to be worth its bytes, waits until that
has been read in; then it goes on as if it had been in memory all along. Others work meanwhile: it
gets no row before, and its memory is set aside. Files are read ahead of the copy into arrays, but
few of them between two steps of those that decode. What is being read for another turn, is still
being written, or is not known of yet, is waited for; but nothing for ever: a turn that waited in
vain for long is read.

Best effort: a file that is wrong costs its own tokens, and whatever goes wrong here costs reading
again, never an answer. Runs on the engine's thread.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial

from daemon.archive import Archive
from daemon.commits import Commits
from daemon.disk_cache.index import Found
from daemon.disk_cache.jobs import (
    ReadDone,
    ReadFailed,
    Result,
    Scanned,
    Swept,
    WriteFailed,
    Written,
)
from daemon.disk_waits import SCAN, Waits
from daemon.fetch_plans import Piece, Plan, is_worth, plan
from daemon.fetching import Fetch, Spares
from daemon.prefix_cache.cache import PrefixCache
from daemon.rows import Rows
from daemon.scheduler import WORTH_WAITING_TOKENS
from daemon.turns import Turn
from mlx_backend.errors import RestoreFailed
from mlx_backend.interface import Backend
from mlx_backend.messages import CacheKind, TokenIds

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
"""How long a turn waits for a disk of which nothing is heard."""

MOST_FETCHES = 8
"""How often something is read in for one turn: a file may be wrong, or memory lose it again."""

STEADY_READS = 2
"""Files on their way at a time while rows decode, and otherwise however large they are."""

READ_AHEAD_BYTES = 64 << 20


class Fetches:
    """`archive`: None where nothing is kept on disk; then nobody waits."""

    def __init__(
        self,
        archive: Archive | None,
        backend: Backend,
        cache: PrefixCache,
        kind: CacheKind,
        rows: Rows,
        commits: Commits,
        tokens_per_second: Callable[[], float | None],
        clock: Callable[[], float],
    ) -> None:
        """`tokens_per_second`: how quickly the model reads prompts, as far as that is known."""
        self._archive = archive if kind is not CacheKind.UNCACHEABLE else None
        self._backend = backend
        self._cache = cache
        self._kind = kind
        self._rows = rows
        self._commits = commits
        self._tokens_per_second = tokens_per_second
        self._clock = clock
        self._waits = Waits(clock)
        self._fetches: dict[Turn, Fetch] = {}
        self._spares = Spares()
        self._on_way: list[int] = []  # bytes of each file
        self._came_at = -math.inf
        self._is_silent = False

    def arrived(self, turn: Turn) -> None:
        """See what is on disk of a prompt, for its rank."""
        archive = self._archive
        if archive is not None and archive.is_ready:
            wanted = self._plan(turn, self._found(archive, turn))
            turn.on_disk = 0 if wanted is None else wanted.length

    def needs(self, turn: Turn) -> bool:
        """Whether a turn has to wait for the disk now; what it waits for is on its way then."""
        turn.awaits_disk = self._has_to_wait(turn)
        self._spares.forget(turn)
        return turn.awaits_disk

    def began(self, turn: Turn) -> None:
        """Its row was opened: what it got from disk is known now."""
        disk = turn.from_disk
        if disk.tokens and self._archive is not None:
            self._archive.note_restored(disk.tokens, disk.nbytes)

    def distrust(self, tokens: TokenIds) -> None:
        """What memory had of `tokens` could not be restored: what is on disk of it goes, too."""
        if self._archive is not None:
            self._archive.distrust(tokens)

    @property
    def has_work(self) -> bool:
        """Whether something is whole, or more can be asked for."""
        may_ask = self._may_ask()
        return any(each.is_done or (each.missing and may_ask) for each in self._fetches.values())

    def settle(self) -> None:
        """Put into the tree what has come whole."""
        for fetch in list(self._fetches.values()):
            if fetch.is_done:
                self._end(fetch)

    def go_on(self, *, is_decoding: bool) -> None:
        """Ask for the next files, first for who began first."""
        for fetch in list(self._fetches.values()):
            while fetch.missing and self._may_ask(is_decoding=is_decoding):
                self._ask(fetch, fetch.missing.popleft())

    def heard(self, result: Result) -> None:
        """A disk thread has done something that turns may wait for."""
        self._is_silent = False
        match result:
            case Swept() | Scanned():
                self._waits.done_with((SCAN,))
            case Written(file=file) | WriteFailed(file=file):
                self._waits.done_with((file.name,))

    def drop(self, turn: Turn) -> None:
        """A turn waits no longer; what has come for it is kept. Idempotent."""
        self._waits.drop(turn)
        if turn in self._fetches:
            self._end(self._fetches[turn])
        self._spares.forget(turn)

    def give_way(self) -> bool:
        """End what was begun last, because a row needs its memory; False if nothing is begun."""
        if not self._fetches:
            return self._rows.take_back()
        turn = next(reversed(self._fetches))
        self.drop(turn)
        self._rows.close(turn)
        turn.fetches -= 1
        turn.refused_at = self._rows.reserved_bytes
        return True

    def abandon(self, *, is_tree_sound: bool) -> None:
        """Nobody waits any longer, because the model broke: no array is touched."""
        for turn, fetch in self._fetches.items():
            fetch.is_over, turn.awaits_disk, turn.row_bytes = True, False, 0
            if is_tree_sound:
                self._cache.release(fetch.pin)
        self._fetches.clear()
        self._waits.clear()
        self._spares.clear()

    def next_expiry(self) -> float:
        """When somebody will have waited in vain for too long; perhaps never."""
        return min(self._waiting_since().values(), default=math.inf) + PATIENCE_SECONDS

    def expire(self, now: float) -> None:
        """Let those who have waited in vain be read; nobody else waits before the disk is heard of
        again."""
        for turn, since in self._waiting_since().items():
            if since + PATIENCE_SECONDS <= now:
                log.warning("request %s waits no longer for the disk", turn.request.id)
                self._is_silent = True
                turn.fetches, turn.left_on_disk = MOST_FETCHES, turn.on_disk
                self.drop(turn)

    def _waiting_since(self) -> dict[Turn, float]:
        """Since when nothing was heard of the disk that each waits for: whoever's file came, the
        others come nearer."""
        since = self._waits.since | {turn: each.began for turn, each in self._fetches.items()}
        return {turn: max(began, self._came_at) for turn, began in since.items()}

    def _has_to_wait(self, turn: Turn) -> bool:
        turn.on_disk = 0
        archive = self._archive
        if archive is None or self._is_silent or turn.fetches >= MOST_FETCHES:
            return False
        if turn.readable < WORTH_WAITING_TOKENS:
            return False
        turn.left_on_disk = 0
        if not archive.is_ready:
            self._waits.add(turn, (SCAN,))
            return True
        found = self._found(archive, turn)
        archive.touch(found)
        wanted = self._plan(turn, found)
        if wanted is None:
            return False
        turn.on_disk = wanted.length
        being_read = (fetch.plan.names for fetch in self._fetches.values())
        awaited = wanted.names & wanted.pending.union(*being_read)
        if not awaited:
            return self._begin(turn, wanted)
        self._waits.add(turn, awaited)
        return True

    def _found(self, archive: Archive, turn: Turn) -> Found:
        """What is on disk of a prompt, as far as memory can hold it."""
        return archive.find(turn.tokens, min(turn.readable, self._rows.storable_tokens(turn)))

    def _plan(self, turn: Turn, found: Found) -> Plan | None:
        """What is to be read for a turn; None if nothing is, or nothing that is worth it."""
        tokens, held = turn.tokens, self._cache.peek(turn.tokens)
        if found.length - held < WORTH_WAITING_TOKENS:
            return None
        wanted = plan(found, self._cache.known(tokens[: found.length]), held)
        assert self._archive is not None
        if not is_worth(wanted, self._archive.read_bytes_per_second, self._tokens_per_second()):
            turn.left_on_disk = wanted.length
            return None
        return wanted

    def _begin(self, turn: Turn, wanted: Plan) -> bool:
        """False if there is no memory for it: then there is no row for it now either, unless there
        never will be so much."""
        pin = self._cache.pin(turn.tokens[: wanted.length])
        if not self._rows.reserve(turn, wanted.tokens):
            self._cache.release(pin)
            return False
        fetch = Fetch(turn, wanted, pin, self._clock(), deque())
        for piece in wanted.pieces:
            spare = self._spares.take(piece)
            if spare is None:
                fetch.missing.append(piece)
            else:
                fetch.spans[piece.start] = spare
        turn.fetches += 1
        self._fetches[turn] = fetch
        return True

    def _may_ask(self, *, is_decoding: bool = False) -> bool:
        if len(self._on_way) < STEADY_READS:
            return True
        return not is_decoding and sum(self._on_way) < READ_AHEAD_BYTES

    def _ask(self, fetch: Fetch, piece: Piece) -> None:
        assert self._archive is not None
        fetch.on_way += 1
        self._on_way.append(piece.file.nbytes)
        self._archive.read(piece.file, partial(self._came, fetch, piece))

    def _came(self, fetch: Fetch, piece: Piece, read: ReadDone | ReadFailed) -> None:
        """A file was read, or could not be: then what follows it is not asked for."""
        self._on_way.remove(piece.file.nbytes)
        self._came_at = self._clock()
        fetch.on_way -= 1
        is_good = isinstance(read, ReadDone) and (fetch.is_over or self._take(fetch, piece, read))
        if isinstance(read, ReadDone):
            assert self._archive is not None
            self._archive.give_back(read.buffer)
        if not is_good and not fetch.is_over:
            fetch.missing.clear()
            fetch.turn.lost_on_disk = fetch.plan.length
            if isinstance(read, ReadFailed) and read.is_there:
                fetch.turn.fetches = MOST_FETCHES  # it could not be read again either

    def _take(self, fetch: Fetch, piece: Piece, read: ReadDone) -> bool:
        """Whether a file could be copied; if it does not fit the model, it is not used again."""
        assert self._archive is not None
        try:
            fetch.take(self._backend, piece, read.content)
            self._keep_rest(piece, read)
        except RestoreFailed as error:
            log.warning("%s does not fit the model: %s", piece.file.name, error)
            self._archive.drop(piece.file)
            return False
        except Exception:
            log.exception("%s could not be copied", piece.file.name)
            fetch.turn.fetches = MOST_FETCHES
            return False
        fetch.nbytes += read.nbytes
        return True

    def _keep_rest(self, piece: Piece, read: ReadDone) -> None:
        """Keep the tokens of a file behind a piece, if somebody waits for it who may want them."""
        file = piece.file
        turns = self._waits.for_file(file.name)
        if turns and piece.start < piece.stop < file.end:
            first, last = piece.stop - file.start, file.end - file.start
            rest = self._backend.import_span(read.content.arrays, first, last)
            self._spares.keep(file.name, piece.stop, rest, turns)

    def _end(self, fetch: Fetch) -> None:
        """Put into the tree what came; the turn, and who waited for its files, look again."""
        turn = fetch.turn
        del self._fetches[turn]
        fetch.is_over, turn.awaits_disk, turn.row_bytes = True, False, 0
        turn.disk_bytes += fetch.nbytes
        turn.disk_seconds += self._clock() - fetch.began
        self._store(fetch)
        self._cache.release(fetch.pin)
        self._waits.done_with(fetch.plan.names)
        self._rows.settle()

    def _store(self, fetch: Fetch) -> None:
        turn, wanted, end = fetch.turn, fetch.plan, fetch.reach
        if self._kind is CacheKind.CHECKPOINTED and (
            end < wanted.length or fetch.checkpoint is None
        ):
            self._keep_all(fetch)
            return
        key = turn.tokens[:end]
        known = self._cache.known(key)
        if end <= wanted.held or known < fetch.start:
            return  # nothing came, or the tree was emptied meanwhile
        span, checkpoint = fetch.span_from(known), fetch.checkpoint
        if self._commits.read_in(turn, key, span, checkpoint, wanted.kind):
            turn.note_fetched(range(wanted.held, end))
            self._rows.set_aside(turn, key)
        else:
            turn.fetches = MOST_FETCHES  # it would not be kept the next time either

    def _keep_all(self, fetch: Fetch) -> None:
        """Keep what came without what it is of use with, for another try."""
        for piece in fetch.plan.pieces:
            if piece.start in fetch.spans and not piece.is_checkpoint:
                span, name = fetch.spans[piece.start], piece.file.name
                turns = (fetch.turn, *self._waits.for_file(name))
                self._spares.keep(name, piece.start, span, turns)
