"""A process that writes what it read is killed at a random moment, again and again.

Each process is an engine with a tiny model and a disk cache, and nothing else. It looks at what the
one before it left: every file is verified, the limits are compared with the folder, and some
conversations go on from where they are, their log-probabilities compared with those of an engine
that keeps nothing. Then it writes until it is killed. Some are killed as they start. The limit
differs from process to process, and less than everything fits, so that files come and go. Writing
takes a small part of the time, so every other kill waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from mlx_backend.blas import prefer_openblas

prefer_openblas()

import mlx_lm.models.gemma3_text  # noqa: E402  (here, so that no process imports it)
import mlx_lm.models.qwen3  # noqa: E402
import mlx_lm.models.qwen3_next  # noqa: E402, F401

from daemon.disk_cache.limits import DiskLimits  # noqa: E402
from daemon.disk_tier import DiskOptions  # noqa: E402
from daemon.engine import Engine  # noqa: E402
from daemon.engine_options import EngineOptions  # noqa: E402
from daemon.generation import Failed, Generated, GenerationRequest  # noqa: E402
from daemon.prefix_cache.cache import PrefixCache  # noqa: E402
from mlx_backend.interface import LoadedModel  # noqa: E402
from mlx_backend.loading import load  # noqa: E402
from mlx_backend.messages import ModelInfo, Prompt, Sampling, TokenScore, token_ids  # noqa: E402
from mlx_backend.tiny_models import write_folder  # noqa: E402

KINDS = ("tiny-full", "tiny-sliding", "tiny-hybrid")
CONVERSATIONS = 8
HEADS, HEAD_TOKENS, TURN_TOKENS = 3, 300, (20, 320)
CHUNK_TOKENS = 128
ANSWER_TOKENS = 3
COMPARED = 3
SHARES_ON_DISK, SHARE_IN_MEMORY = (0.3, 0.6), 0.2
IDLE_SECONDS = 0.01
WRITING_SECONDS, STARTING_SECONDS = 0.4, 0.25
SHARE_KILLED_AS_THEY_START, SHARE_KILLED_IN_A_FILE = 0.2, 0.5
IN_A_FILE_SECONDS = 0.002
HANG_SECONDS = 60.0
TOLERANCE = 1e-3
"""Of a log-probability: sums are taken in another order where a prompt is read in other chunks. A
token that is wrong anywhere changes it by far more."""

Processes = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
"""A fork has everything imported already; with Metal there may be none."""

Turn: TypeAlias = tuple[int, int]
"""The number of a conversation, and how many turns it has had."""


@dataclass(frozen=True)
class Life:
    """What a process is told. Conversations have so many `turns`; no disk cache without a
    `folder`."""

    model: Path
    turns: int
    seed: str = ""
    folder: Path | None = None
    max_bytes: int = 0
    memory_bytes: int = 0

    def all_turns(self) -> list[Turn]:
        return list(itertools.product(range(CONVERSATIONS), range(self.turns)))


@dataclass(frozen=True)
class Cold:
    """What is answered by an engine that keeps nothing, and how much there would be to keep."""

    scores: dict[Turn, list[TokenScore]]
    nbytes: int


@dataclass(frozen=True)
class Findings:
    """What a process found, and the scores of what it answered."""

    checked: int
    refused: tuple[str, ...]
    over_bytes: int
    from_disk: int
    scores: dict[Turn, list[TokenScore]]


def prompt_of(turn: Turn) -> list[int]:
    """The whole history up to and with that turn. Conversations share a few heads."""
    conversation, turns = turn
    tokens = _text(f"head {conversation % HEADS}", HEAD_TOKENS)
    for number in range(turns + 1):
        label = f"{conversation} {number}"
        tokens += _text(label, Random(label).randrange(*TURN_TOKENS))
    return tokens


def state_bytes(info: ModelInfo, turns: int) -> int:
    """Of all conversations, what they share counted once."""
    whole = sum(len(prompt_of((number, turns - 1))) for number in range(CONVERSATIONS))
    tokens = whole - (CONVERSATIONS - HEADS) * HEAD_TOKENS
    return tokens * info.span_token_bytes + CONVERSATIONS * turns * info.checkpoint_bytes


def _text(label: str, length: int) -> list[int]:
    random = Random(f"text of {label}")
    return [random.randrange(300) for _ in range(length)]


# --- in a process of its own -------------------------------------------------------------------


class Process:
    """An engine and what is asked of it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.random = Random(life.seed)
        self._ids = itertools.count()
        disk = None
        if life.folder is not None:
            limits = DiskLimits(max_bytes=life.max_bytes, floor_bytes=0)
            disk = DiskOptions(life.folder, limits, idle_seconds=IDLE_SECONDS)
        self.engine = Engine(
            self._load,
            make_cache=self._make_cache,
            options=EngineOptions(chunk_tokens=CHUNK_TOKENS, disk=disk),
        )

    def _load(self) -> LoadedModel:
        return load(str(self.life.model))

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        """Memory holds less than the disk does, so that states are evicted from it, too."""
        max_bytes = self.life.memory_bytes
        return PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=max_bytes)

    async def open(self) -> None:
        self.engine.start()
        async with self.engine.lease():
            pass

    async def answer(self, turn: Turn) -> list[TokenScore]:
        request = GenerationRequest(
            f"r{next(self._ids)}",
            Prompt(token_ids(prompt_of(turn))),
            ANSWER_TOKENS,
            Sampling(alternatives=4),
            session=str(turn[0]),
        )
        scores: list[TokenScore] = []
        async for event in self.engine.submit(request):
            if isinstance(event, Generated):
                scores += event.scores
            elif isinstance(event, Failed):
                raise event.error
        return scores

    async def findings(self) -> Findings:
        check = await self.engine.check_disk()
        over_bytes = await self._over_bytes()
        turns = self.random.sample(self.life.all_turns(), COMPARED)
        scores = {turn: await self.answer(turn) for turn in turns}
        from_disk = sum(request.from_disk for request in self.engine.requests())
        return Findings(check.files, check.bad, over_bytes, from_disk, scores)

    async def _over_bytes(self) -> int:
        """Files go in the background as it starts."""
        deadline = time.monotonic() + 5.0
        assert self.life.folder is not None
        while (over := folder_bytes(self.life.folder) - self.life.max_bytes) > 0:
            if time.monotonic() > deadline:
                return over
            await asyncio.sleep(0.01)
        return 0

    async def write(self) -> None:
        """Until it is killed; one turn after the other, so that more is written each time."""
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            conversation, first = self.random.choice(self.life.all_turns())
            for turn in range(first, self.life.turns):
                await self.answer((conversation, turn))
                await asyncio.sleep(self.random.choice((0.0, 2 * IDLE_SECONDS)))


def live(life: Life, pipe: Connection) -> None:
    """The body of a process that is killed in the end."""

    async def run() -> None:
        process = Process(life)
        await process.open()
        pipe.send(await process.findings())
        await process.write()

    asyncio.run(run())


def answer_cold(life: Life, pipe: Connection) -> None:
    """The body of the process that answers everything once, and keeps nothing."""

    async def run() -> Cold:
        process = Process(life)
        await process.open()
        scores = {turn: await process.answer(turn) for turn in life.all_turns()}
        info = process.engine.model().info
        await process.engine.close(grace_seconds=0)
        return Cold(scores, state_bytes(info, life.turns))

    pipe.send(asyncio.run(run()))


# --- from outside ------------------------------------------------------------------------------


def folder_bytes(folder: Path) -> int:
    """Of all files of state, those that are only begun included."""
    return sum(
        _size(path) for pattern in ("*.safetensors", "*.tmp") for path in _in(folder, pattern)
    )


def _in(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(f"*/{pattern}"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # deleted since
        return 0


@contextmanager
def process(body: Any, life: Life) -> Iterator[Connection]:
    """Runs `body`; killed when the block ends."""
    ours, theirs = Processes.Pipe(duplex=False)
    child = Processes.Process(target=body, args=(life, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        child.kill()
        child.join()
        ours.close()


def received(pipe: Connection) -> Any:
    if not pipe.poll(HANG_SECONDS):
        raise TimeoutError("a process hangs")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process ended before it was killed; it says why above") from None


@dataclass
class Tally:
    """All rounds on one kind of model, in a folder of its own."""

    kind: str
    rounds: int = 0
    torn: int = 0
    checked: int = 0
    compared: int = 0
    from_disk: int = 0
    difference: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def add(self, found: Findings, cold: dict[Turn, list[TokenScore]]) -> None:
        self.checked += found.checked
        self.from_disk += found.from_disk
        self.wrong += [f"refused: {why}" for why in found.refused]
        if found.over_bytes > 0:
            self.wrong.append(f"over its limit by {found.over_bytes:,} bytes")
        for turn, scores in found.scores.items():
            difference = differing(scores, cold[turn])
            self.compared += 1
            self.difference = max(self.difference, difference)
            if difference > TOLERANCE:
                self.wrong.append(f"turn {turn}: log-probabilities differ by {difference:.2g}")

    def line(self) -> str:
        return (
            f"{self.kind}: {self.rounds} kills, {self.torn} in the middle of a file; "
            f"{self.checked:,} files verified; {self.compared} answers compared, "
            f"{self.from_disk:,} of their tokens from disk, log-probabilities within "
            f"{self.difference:.1g}; {len(self.wrong)} wrong"
        )


def differing(some: Sequence[TokenScore], others: Sequence[TokenScore]) -> float:
    """By how much the log-probabilities differ, in the order of their likelihood."""
    if len(some) != len(others):
        return float("inf")
    return max(abs(a - b) for a, b in zip(_values(some), _values(others), strict=True))


def _values(scores: Sequence[TokenScore]) -> list[float]:
    return [
        value
        for score in scores
        for value in (score.logprob, *(logprob for _, logprob in score.alternatives))
    ]


class Rounds:
    """One kind's."""

    def __init__(self, kind: str, root: Path, turns: int, seed: str) -> None:
        self.tally = Tally(kind)
        self._random = Random(f"{seed} {kind}")
        self._folder = root / f"{kind}-disk"
        self._told = Life(root / kind, turns)
        self._build()
        with process(answer_cold, self._told) as pipe:
            self._cold: Cold = received(pipe)

    def _build(self) -> None:
        builder = Processes.Process(target=write_folder, args=(self.tally.kind, self._told.model))
        builder.start()
        builder.join()

    def round(self) -> None:
        if self._random.random() < SHARE_KILLED_AS_THEY_START:
            with process(live, self._life()):
                time.sleep(self._random.uniform(0, STARTING_SECONDS))
        life = self._life()
        with process(live, life) as pipe:
            self.tally.add(received(pipe), self._cold.scores)
            time.sleep(self._random.uniform(0, WRITING_SECONDS))
            if self._random.random() < SHARE_KILLED_IN_A_FILE:
                self._wait_for_a_file()
        self.tally.rounds += 1
        self.tally.torn += bool(_in(self._folder, "*.tmp"))
        if (over := folder_bytes(self._folder) - life.max_bytes) > 0:
            self.tally.wrong.append(f"over its limit by {over:,} bytes when it was killed")

    def _wait_for_a_file(self) -> None:
        """Until one is being written, and into the midst of it."""
        deadline = time.monotonic() + WRITING_SECONDS
        while not _in(self._folder, "*.tmp") and time.monotonic() < deadline:
            time.sleep(0.0001)
        time.sleep(self._random.uniform(0, IN_A_FILE_SECONDS))

    def end(self) -> None:
        """Look at what the last one left, too."""
        with process(live, self._life()) as pipe:
            self.tally.add(received(pipe), self._cold.scores)

    def _life(self) -> Life:
        share = self._random.uniform(*SHARES_ON_DISK)
        return replace(
            self._told,
            seed=str(self._random.random()),
            folder=self._folder,
            max_bytes=int(share * self._cold.nbytes),
            memory_bytes=int(SHARE_IN_MEMORY * self._cold.nbytes),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=200, help="in all")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--turns", type=int, default=6, help="of each of eight conversations")
    parser.add_argument("--seed", default="0")


def main(options: argparse.Namespace) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        kinds = [
            Rounds(kind, Path(root), options.turns, options.seed) for kind in options.kind or KINDS
        ]
        for number in range(options.rounds):
            kinds[number % len(kinds)].round()
        for each in kinds:
            each.end()
    for each in kinds:
        print(each.tally.line())
        for wrong in each.tally.wrong:
            print(f"  {wrong}")
    print(f"{options.rounds} rounds in {time.monotonic() - began:.0f} s; target: nothing wrong")
    return 1 if any(each.tally.wrong for each in kinds) else 0
