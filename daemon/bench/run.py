"""One run of the benchmark: models, servers and scenarios in turn, and a report at the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.bench.client import BenchFailed, ask
from daemon.bench.peers import Server, mlx_lm, mlxd, mlxd_with_disk
from daemon.bench.play import Player
from daemon.bench.report import BenchReport, ScenarioResult, ServerResult
from daemon.bench.scenarios import SCENARIOS, Sizes, all_scenarios
from daemon.bench.server_process import PACKAGE_FOLDER
from daemon.bench.traffic import Answer, Scenario
from daemon.status import ModelStatus
from mlx_backend.interface import PromptEncoder

KINDS = ("full", "sliding", "hybrid")
FILLED = 0.95
"""Share of the context that the longest prompt may take; the rest is for answers."""
SHRINKS = 6
"""Attempts to fit the context: not all of a prompt shrinks with its texts."""
_BUILD = """
import sys
from pathlib import Path
from mlx_backend.tiny_models import write_folder
write_folder(sys.argv[1], Path(sys.argv[2]))
"""
_SAMPLE = "Read the file before you edit its lines, unless the user says no.\n  12  a = b(c, 7)\n"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to run. `kinds` are tiny models built on the spot; `model`, a folder or a repository,
    takes their place.

    `only` keeps the scenarios whose names contain one of its words. `scale` stretches the texts,
    which shrink by themselves where the context is too small. Another `seed` writes other texts.
    """

    kinds: Sequence[str] = KINDS
    model: str | None = None
    peer: bool = False
    only: Sequence[str] = ()
    scale: float = 1.0
    seed: str = "0"


@dataclass(frozen=True, slots=True)
class _Work:
    """One model and how to play on it. The model is a folder or a hub repository."""

    name: str
    model: str
    encoder: PromptEncoder
    options: BenchOptions
    say: Callable[[str], None]


def run(options: BenchOptions, say: Callable[[str], None] = lambda line: None) -> BenchReport:
    """Play the chosen scenarios; `say` gets a line when one is done. Raises CommandFailed."""
    with tempfile.TemporaryDirectory() as folder:
        models = _models(options, Path(folder))
        results = [
            result
            for name, model in models.items()
            for result in asyncio.run(_run_model(_work(name, model, options, say)))
        ]
    return BenchReport(tuple(results))


def chosen(scenarios: Sequence[Scenario], only: Sequence[str]) -> tuple[Scenario, ...]:
    """The scenarios whose names contain one of the words of `only`; all of them without any."""
    if not only:
        return tuple(scenarios)
    found = tuple(s for s in scenarios if any(word in s.name for word in only))
    if not found:
        raise BenchFailed(f"No scenario has such a name. There are: {'; '.join(SCENARIOS)}.")
    return found


def fitting(
    encoder: PromptEncoder, options: BenchOptions, context_size: int
) -> tuple[Scenario, ...]:
    """The chosen scenarios, with texts scaled down where a prompt would not fit the context."""
    scale = options.scale
    for _ in range(SHRINKS):
        sizes = Sizes(characters_per_token(encoder), scale, options.seed)
        scenarios = chosen(all_scenarios(sizes), options.only)
        longest = max(_longest_prompt(encoder, scenario) for scenario in scenarios)
        if longest <= FILLED * context_size:
            return scenarios
        scale *= 0.9 * FILLED * context_size / longest
    raise BenchFailed(f"a context of {context_size:,} tokens is too small for this traffic")


def characters_per_token(encoder: PromptEncoder) -> float:
    """In text of the kind that `texts` writes."""
    return len(_SAMPLE) / len(encoder.text(_SAMPLE))


def _longest_prompt(encoder: PromptEncoder, scenario: Scenario) -> int:
    answers = dict.fromkeys((request.label for request in scenario.requests), Answer("answer"))
    return max(
        len(encoder.chat(request.resolve(answers), request.tools)) for request in scenario.requests
    )


def _models(options: BenchOptions, folder: Path) -> dict[str, str]:
    if options.model is not None:
        return {Path(options.model).name: options.model}
    names = [f"tiny-{kind}" for kind in options.kinds]
    return {name: str(build_tiny(name, folder)) for name in names}


def build_tiny(name: str, folder: Path) -> Path:
    """A tiny model in a new folder of that name.

    Building imports mlx, which takes seconds and threads: that stays in another process.
    """
    path = folder / name
    built = subprocess.run(
        [sys.executable, "-c", _BUILD, name, str(path)],
        cwd=PACKAGE_FOLDER,
        capture_output=True,
        text=True,
    )
    if built.returncode != 0:
        raise BenchFailed(f"{name} could not be built:\n{built.stderr[-2000:]}")
    return path


def _work(name: str, model: str, options: BenchOptions, say: Callable[[str], None]) -> _Work:
    from daemon.models import prompt_encoder

    return _Work(name, model, prompt_encoder(model), options, say)


async def _run_model(work: _Work) -> list[ServerResult]:
    async with mlxd(work.model) as server:
        model = (await server.status()).engine.model
        scenarios = fitting(work.encoder, work.options, model.context_size)
        steady = [scenario for scenario in scenarios if not scenario.is_interrupted]
        played = await _played(work, server, model, steady)
    interrupted = [scenario for scenario in scenarios if scenario.is_interrupted]
    if interrupted:
        async with mlxd_with_disk(work.model) as server:
            played += await _played(work, server, model, interrupted)
    results = [_result(work, server, model, played)]
    if work.options.peer:
        async with mlx_lm(work.model) as peer:
            played = await _played(work, peer, model, (*steady, *interrupted))
            results.append(_result(work, peer, model, played))
    return results


async def _played(
    work: _Work, server: Server, model: ModelStatus, scenarios: Sequence[Scenario]
) -> list[ScenarioResult]:
    if not scenarios:
        return []
    is_cuttable = model.cache_kind == "sliceable"
    is_random = work.options.model is None
    player = Player(server, work.encoder, is_cuttable, plain_answers=is_random)
    await _warm_up(server)
    results = []
    for scenario in scenarios:
        results.append(await player.play(scenario))
        work.say(_progress_line(work, server, results[-1]))
    return results


def _result(
    work: _Work, server: Server, model: ModelStatus, played: Sequence[ScenarioResult]
) -> ServerResult:
    return ServerResult(
        server.name, work.name, model.cache_kind, model.span_token_bytes, tuple(played)
    )


async def _warm_up(server: Server) -> None:
    """A first answer, so that loading and first compilation are not counted as reading."""
    message = {"role": "user", "content": "hello"}
    await ask(server.http, {"model": server.model, "messages": [message], "max_tokens": 2})


def _progress_line(work: _Work, server: Server, result: ScenarioResult) -> str:
    return (
        f"{work.name} {server.name}: {result.name}: read {result.read:,} of {result.prompt:,}, "
        f"floor {result.floor:,}, {result.seconds:.1f} s"
    )
