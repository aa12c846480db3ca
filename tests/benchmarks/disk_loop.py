"""Bytes written in a tool loop, beside the bytes of its distinct blocks.

A daemon with a disk cache plays a loop of so many turns and is left alone after each of them, until
all is saved. What it should have written is each distinct token's state once, and each checkpoint
that is there in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daemon.bench.openings import opened
from daemon.bench.peers import Mlxd, mlxd_with_disk
from daemon.bench.play import Player
from daemon.bench.run import KINDS, build_tiny, characters_per_token
from daemon.bench.texts import Author
from daemon.bench.traffic import Interruption, Scenario, Spelling, Step

RESULT_TOKENS = (150, 450)
RATIO_TARGET = 1.05


@dataclass(frozen=True)
class Written:
    """In bytes: `blocks` and `checkpoints` are what had to be written, `written` what was."""

    blocks: int
    checkpoints: int
    written: int
    files: int

    @property
    def ratio(self) -> float:
        return self.written / (self.blocks + self.checkpoints)


def loop_of(turns: int, author: Author) -> Iterator[Step]:
    talk = opened(author).user(author.prose("fix the failing test", 250))
    fewest, most = RESULT_TOKENS
    for turn in range(turns):
        yield (talk.call(f"turn {turn}"),)
        yield Interruption.SAVE
        path = f"src/module_{turn}.py"
        results = {path: author.source(path, fewest + 70 * turn % (most - fewest))}
        talk = talk.worked(f"turn {turn}", results, spelling=Spelling.REWRITTEN)


async def played(model: str, turns: int) -> Written:
    from daemon.models import prompt_encoder

    async with mlxd_with_disk(model) as server:
        info = (await server.status()).engine.model
        is_cuttable = info.cache_kind == "sliceable"
        encoder = prompt_encoder(model)
        player = Player(server, encoder, is_cuttable, plain_answers=True)
        author = Author("loop", characters_per_token(encoder))
        scenario = Scenario("loop", tuple(loop_of(turns, author)))
        result = await player.play(scenario)
        print(f"  read {result.read:,} of {result.prompt:,} tokens, floor {result.floor:,}")
        return await _written(server, player.distinct * info.span_token_bytes)


async def _written(server: Mlxd, block_bytes: int) -> Written:
    disk = (await server.status()).engine.disk
    checkpoints = Path(disk.folder).glob("*/*.checkpoint.safetensors")
    checkpoint_bytes = sum(path.stat().st_size for path in checkpoints)
    return Written(block_bytes, checkpoint_bytes, disk.written_bytes, disk.files)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--kind", choices=KINDS, action="append")


def main(options: argparse.Namespace) -> None:
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(
                played(str(build_tiny(f"tiny-{kind}", Path(folder))), options.turns)
            )
        print(
            f"{kind}: {found.written:,} bytes in {found.files:,} files, of {found.blocks:,} for "
            f"blocks and {found.checkpoints:,} for checkpoints: {found.ratio:.3f} "
            f"(target ≤ {RATIO_TARGET})",
            flush=True,
        )
