"""The commands that do work of their own: `serve`, `demo`, `bench` and `version`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from daemon import __version__
from daemon.cli.asking import JsonFlag
from daemon.cli.flags import accepts_settings, own_disk_folder_of
from daemon.cli.output import complain, print_json, say, show
from daemon.cli.supervised import remembers_refusals
from daemon.errors import ConfigurationError
from daemon.settings import TABLE, Resolved

if TYPE_CHECKING:
    from pathlib import Path

    from daemon.demo.report import Turn

ModelFlag = Annotated[
    str | None,
    typer.Option("--model", metavar="FOLDER_OR_REPO", help="A model of your own."),
]


SupervisedFlag = Annotated[
    bool,
    typer.Option("--supervised", hidden=True, help="Run by launchd, as `mlxd install` has it."),
]


@remembers_refusals
@accepts_settings(TABLE)
def serve(resolved: Resolved, supervised: SupervisedFlag = False) -> None:
    """Run the daemon in the foreground, until Ctrl-C or SIGTERM."""
    from daemon import logs, paths
    from daemon.machine import edges_of_this_machine
    from daemon.serve import serve as run_daemon
    from daemon.starts import Starts

    logs.start_logging(resolved.settings.log_level, paths.daemon_log(), to_terminal=not supervised)
    logging.getLogger(__name__).info("settings: %s", resolved.chosen())
    if supervised:
        logs.cut_short(paths.terminal_log())
    starts = Starts(paths.starts_file(), counted=supervised)
    disk_folder: Path | None = None
    regained = [paths.cache_folder(), paths.logs_folder()]
    if resolved.settings.disk_cache_bytes != 0:
        disk_folder = own_disk_folder_of(resolved.settings)
        # There before its first file, so that it is kept out of backups from then on. Whether it
        # can be used is found out, and told, where it is.
        with suppress(OSError):
            disk_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        regained.append(disk_folder)
    edges = edges_of_this_machine(regained)
    code = run_daemon(
        resolved.settings,
        token_file=paths.token_file(),
        disk_folder=disk_folder,
        starts=starts,
        edges=edges,
    )
    raise typer.Exit(code)


def demo(
    model: ModelFlag = None,
    fetch_only: Annotated[
        bool, typer.Option("--fetch-only", help="Fetch the small real model, and no more.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Play a coding agent's day against a daemon of its own, and show what was read."""
    chosen = model or fetch_demo_model()
    if fetch_only:
        return
    import asyncio

    from daemon import paths
    from daemon.demo import play
    from daemon.views import demo as views

    def on_turn(turn: Turn) -> None:
        show(views.demo_turn(turn), to_stderr=as_json)

    show(views.demo_header(), to_stderr=as_json)
    report = asyncio.run(play.run(chosen, paths.demo_log(), on_turn))
    if as_json:
        print_json(report.as_json())
    else:
        show(views.demo_summary(report))


def fetch_demo_model() -> str:
    """The demo's model, downloaded behind a progress bar if it is not there yet."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from daemon import paths
    from daemon.models import fetch_demo_model as fetch

    folder = paths.demo_model_folder()
    if folder.is_dir():
        return str(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"Fetching {folder.name}", total=None)
        fetch(lambda done, total: bar.update(task, completed=done, total=total))
    return str(folder)


def bench(
    peer: Annotated[
        str | None, typer.Option(metavar="mlx-lm", help="Measure this server beside mlxd.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="full|sliding|hybrid", help="Tiny model to build; repeatable."),
    ] = None,
    model: ModelFlag = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Only scenarios with this word; repeatable."),
    ] = None,
    scale: Annotated[float, typer.Option(min=0.01, help="Stretch the texts.")] = 1.0,
    seed: Annotated[str, typer.Option(help="Another seed writes other texts.")] = "0",
    as_json: JsonFlag = False,
) -> None:
    """Replay agents' traffic, and count what is read against what has to be."""
    from daemon.bench import run

    refuse_unknown("--peer", [peer] if peer else [], ("mlx-lm",))
    refuse_unknown("--kind", kind or [], run.KINDS)
    options = run.BenchOptions(
        kinds=kind or run.KINDS,
        model=model,
        peer=peer is not None,
        only=scenario or (),
        scale=scale,
        seed=seed,
    )
    report = run.run(options, complain)
    if as_json:
        print_json(report.as_json())
    else:
        show(*report.tables())


def refuse_unknown(flag: str, given: Iterable[str], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            raise ConfigurationError(f"{flag} is {word!r}, but has to be {' or '.join(known)}.")


def version() -> None:
    """Print the version."""
    say(f"mlxd {__version__}")
