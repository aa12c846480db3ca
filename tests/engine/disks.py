"""What tests of an engine with a disk share: its options, and waiting for what it does there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from daemon.disk_cache.limits import DiskLimits
from daemon.disk_tier import DiskOptions
from tests.engine.harness import Bench, until
from tests.engine.library import Library
from tests.fakes import TURN_END

LIMITS = {field.name for field in fields(DiskLimits)}


def disk(folder: Path, **options: Any) -> DiskOptions:
    """Fields of DiskLimits and of DiskOptions; nothing has to stay free."""
    limits = {"floor_bytes": 0, **{name: options.pop(name) for name in LIMITS & options.keys()}}
    return DiskOptions(folder, DiskLimits(**limits), **options)


async def nudge(bench: Bench | Library) -> None:
    """Let the engine's thread look at the clock, and tell of what has become of all so far."""
    await bench.engine.ask(lambda seen: None)


async def written(bench: Bench | Library) -> None:
    """Wait until nothing is left to be written."""
    await until(lambda: bench.engine.status().disk.pending_bytes == 0)


async def told(bench: Bench, prompt: list[int], **more: Any) -> list[int]:
    """Run a prompt and check its answer; the conversation after it."""
    answer = await bench.run(prompt, **more)
    assert answer.tokens == bench.cold(prompt)
    return [*prompt, *answer.tokens, TURN_END]
