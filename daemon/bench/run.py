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
from daemon.bench.peers import PACKAGE_FOLDER, Server, mlx_lm, mlxd
from daemon.bench.play import Player
from daemon.bench.report import BenchReport, ScenarioResult, ServerResult
from daemon.bench.scenarios import SCENARIOS, Sizes, all_scenarios
from daemon.bench.traffic import Scenario
from daemon.status import ModelStatus
from mlx_backend.interface import PromptEncoder

KINDS = ("full", "sliding", "hybrid")
_BUILD = """
import sys
from pathlib import Path
from mlx_backend.tiny_models import write_folder
write_folder(sys.argv[1], Path(sys.argv[2]))
"""
_SAMPLE = "Read the file before you edit its lines, unless the user says no.\n  12  a = b(c, 7)\n"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to run. `kinds` are tiny models built on the spot; `model` is a folder in their place.

    `only` keeps the scenarios whose names contain one of its words; `scale` stretches the texts;
    another `seed` writes other texts.
    """

    kinds: Sequence[str] = KINDS
    model: str | None = None
    peer: bool = False
    only: Sequence[str] = ()
    scale: float = 1.0
    seed: str = "0"


@dataclass(frozen=True, slots=True)
class _Work:
    """One model and what is to be played on it. `is_random`: its answers mean nothing."""

    name: str
    path: Path
    encoder: PromptEncoder
    scenarios: tuple[Scenario, ...]
    is_random: bool
    say: Callable[[str], None]


def run(options: BenchOptions, say: Callable[[str], None] = lambda line: None) -> BenchReport:
    """Play the chosen scenarios; `say` gets a line when one is done. Raises BenchFailed."""
    with tempfile.TemporaryDirectory() as folder:
        models = _models(options, Path(folder))
        results = [
            result
            for name, path in models.items()
            for result in asyncio.run(_run_model(_work(name, path, options, say), options.peer))
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


def _models(options: BenchOptions, folder: Path) -> dict[str, Path]:
    if options.model is not None:
        return {Path(options.model).name: Path(options.model).expanduser()}
    return {f"tiny-{kind}": _build_tiny(f"tiny-{kind}", folder) for kind in options.kinds}


def _build_tiny(name: str, folder: Path) -> Path:
    """Building imports mlx, which takes seconds and threads: that stays in another process."""
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


def _work(name: str, path: Path, options: BenchOptions, say: Callable[[str], None]) -> _Work:
    from daemon.serve import prompt_encoder

    encoder = prompt_encoder(str(path))
    characters_per_token = len(_SAMPLE) / len(encoder.text(_SAMPLE))
    sizes = Sizes(characters_per_token, options.scale, options.seed)
    scenarios = chosen(all_scenarios(sizes), options.only)
    return _Work(name, path, encoder, scenarios, options.model is None, say)


async def _run_model(work: _Work, with_peer: bool) -> list[ServerResult]:
    async with mlxd(work.path) as server:
        model = (await server.status()).engine.model
        results = [await _run_server(work, server, model)]
    if with_peer:
        async with mlx_lm(work.path) as peer:
            results.append(await _run_server(work, peer, model))
    return results


async def _run_server(work: _Work, server: Server, model: ModelStatus) -> ServerResult:
    is_cuttable = model.cache_kind == "sliceable"
    player = Player(server, work.encoder, is_cuttable, work.is_random)
    await _warm_up(server)
    scenarios = []
    for scenario in work.scenarios:
        scenarios.append(await player.play(scenario))
        work.say(_progress_line(work, server, scenarios[-1]))
    return ServerResult(
        server.name, work.name, model.cache_kind, model.span_token_bytes, tuple(scenarios)
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
