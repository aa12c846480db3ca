"""One model's turns without a thread, beside a disk that does each thing when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from daemon.archive import Archive
from daemon.budget import Budget
from daemon.deliveries import Delivery, Generation, Outbox
from daemon.disk_cache.jobs import (
    Delete,
    JobQueue,
    Read,
    ReadDone,
    Result,
    Scan,
    Sweep,
    Touch,
    Write,
)
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_cache.reading import Reader
from daemon.disk_cache.writing import Writer
from daemon.disk_tier import DiskOptions, DiskTier
from daemon.generation import GenerationRequest
from daemon.inference import Inference, ReadingPolicy
from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Records, request_status
from daemon.sessions import Sessions
from daemon.status import RequestStatus
from daemon.turns import Phase, Turn
from mlx_backend.messages import CacheKind, Prompt, token_ids
from tests.engine.harness import Clock
from tests.fakes import Script, ScriptedModel

PASSES = 10_000


class TickingClock(Clock):
    """Each time that somebody wants to know it, it is `tick` seconds later."""

    def __init__(self, tick: float) -> None:
        super().__init__()
        self._tick = tick

    def __call__(self) -> float:
        self.now += self._tick
        return super().__call__()


class SlowDisk:
    """`folder` may have been filled by an earlier one. Jobs wait in `reader` and `writer`;
    `names_read` are those of the files that were read.

    `tick`: what passes whenever the engine looks at the clock; `file_seconds`: what the reader
    says that each file took, if not the truth.
    """

    def __init__(
        self,
        folder: Path,
        kind: CacheKind = CacheKind.SLICEABLE,
        *,
        script: Script | None = None,
        budget_bytes: int | None = None,
        cache_bytes: int = 1 << 30,
        max_entries: int | None = None,
        cache_class: type[PrefixCache] = PrefixCache,
        disk_bytes: int = 1 << 30,
        chunk_tokens: int = 256,
        tick: float = 0.0,
        file_seconds: float | None = None,
    ) -> None:
        self.clock = TickingClock(tick)
        self._file_seconds = file_seconds
        self.script = script or Script(yields=False)
        self.model = ScriptedModel(self.script, kind)
        self.backend = self.model.backend
        self.cache = cache_class(kind=kind, max_entries=max_entries, max_bytes=cache_bytes)
        self.writer, self.reader = JobQueue(), JobQueue()
        limits = DiskLimits(max_bytes=disk_bytes, floor_bytes=0)
        self.tier = DiskTier(DiskOptions(folder, limits), self.writer, self.reader, self.clock)
        self.tier.start()
        self.archive = Archive(self.tier, self.model.info.identity, kind)
        self.records = Records()
        budget = Budget.of_model(self.model.info, budget_bytes)
        self.inference = Inference(
            model=self.model,
            cache=self.cache,
            budget=replace(budget, growth_tokens=64),
            policy=ReadingPolicy(chunk_tokens=chunk_tokens),
            sessions=Sessions(),
            records=self.records,
            outbox=Outbox(_ignore),
            announce=lambda: None,
            clock=self.clock,
            archive=self.archive,
        )
        self._sessions = Sessions()
        self.names_read: list[str] = []
        self._reading, self._writing = Reader(folder), Writer(folder)
        self._loop = asyncio.new_event_loop()
        self._loop.close()
        self._numbers = count()

    def look_through(self) -> None:
        """Let the disk find out what is there."""
        self.write()
        self.read()

    def submit(self, prompt: Sequence[int], max_tokens: int = 50) -> Turn:
        number = next(self._numbers)
        request = GenerationRequest(f"r{number}", Prompt(token_ids(list(prompt))), max_tokens)
        generation = Generation(request, self._loop, lambda generation, is_whole: None)
        now = self.clock()
        turn = Turn(generation, number, now, self._sessions.open(request, now))
        self.inference.add(turn)
        return turn

    def once(self) -> None:
        """A step for those that decode, and a chunk."""
        self.inference.decode_step()
        self.inference.read_chunk()

    def work(self) -> None:
        """All that can be done without the disk."""
        for _ in range(PASSES):
            if not self.inference.has_work:
                return
            self.once()
        raise AssertionError("it works without end")

    def read(self, jobs: int = PASSES) -> int:
        """Let the reader do so many jobs at most; how many it did."""
        done = 0
        while done < jobs and (job := self.reader.poll()) is not None:
            if isinstance(job, Scan):
                *_, result = self._reading.scan(job)
                assert result is not None
            else:
                assert isinstance(job, Read)
                self.names_read.append(job.file.name)
                result = self._reading.read(job)
                if isinstance(result, ReadDone) and self._file_seconds is not None:
                    result = replace(result, seconds=self._file_seconds)
            self._hear(result)
            done += 1
        return done

    def write(self) -> None:
        """Let the writer do all that it has been asked."""
        while (job := self.writer.poll()) is not None:
            match job:
                case Sweep():
                    self._hear(self._writing.sweep(job))
                case Write():
                    self._hear(self._writing.write(job))
                case Delete():
                    self._hear(self._writing.delete(job))
                case Touch():
                    if (lost := self._writing.touch(job)) is not None:
                        self._hear(lost)

    def finish(self) -> None:
        """Go on until no turn is left, or nothing moves any more."""
        for _ in range(PASSES):
            self.work()
            if not self.inference.turns or not self.read(1):
                return
        raise AssertionError("it goes on without end")

    def tell(self, prompt: Sequence[int], max_tokens: int = 50) -> Turn:
        """Run a prompt to its end."""
        turn = self.submit(prompt, max_tokens)
        self.finish()
        assert turn.phase is Phase.DONE, turn.phase
        self.expect_right(turn)
        return turn

    def save(self) -> None:
        """Have all that was read written."""
        for kept in list(self.cache.states()):
            assert self.archive.save(kept)
        self.write()

    def status(self, turn: Turn) -> RequestStatus:
        return request_status(turn, self.clock())

    def expect_right(self, turn: Turn) -> None:
        """Its answer, as far as it goes, is that of a run without any cache."""
        state = turn.request.prompt.tokens.tolist()
        for index, token in enumerate(turn.outputs):
            assert token == self.script.reply(state, index), f"token {index} is wrong"
            state.append(token)

    def _hear(self, result: Result) -> None:
        self.tier.hear(result)
        self.inference.fetches.heard(result)


def filled(folder: Path, kind: CacheKind, *prompts: Sequence[int]) -> None:
    """Have a folder hold what an earlier run read of these."""
    disk = SlowDisk(folder, kind)
    disk.look_through()
    for prompt in prompts:
        disk.tell(prompt)
    disk.save()


def restarted(folder: Path, kind: CacheKind, **options: object) -> SlowDisk:
    """A run that begins with nothing in memory and knows what is in the folder."""
    disk = SlowDisk(folder, kind, **options)  # type: ignore[arg-type]
    disk.look_through()
    return disk


def _ignore(deliveries: Sequence[Delivery]) -> None:
    """Nobody listens: what a turn has come to is read from the turn itself."""
