"""The `mlxd` command: a thin client of the daemon, and the door to `serve`, `demo` and `bench`.

Prints what `daemon.views` builds; nothing else in mlxd prints. Each command imports what it needs
itself, so that `mlxd status` answers at once. Exit codes are part of the interface.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from enum import IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon import __version__
from daemon.errors import CommandFailed, ConfigurationError
from daemon.settings import TABLE, Resolved, Setting, resolve
from mlx_backend.errors import BackendError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from daemon.demo.report import Turn
    from daemon.status import DaemonStatus

app = typer.Typer(
    name="mlxd",
    help="An inference daemon for local coding agents that reads no prompt token twice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class ExitCode(IntEnum):
    """What the command's exit tells a script. 2 is a wrong command line."""

    READY = 0
    FAILED = 1
    STOPPED = 3
    STARTING = 4
    DEGRADED = 5
    CONFIGURATION = os.EX_CONFIG


def main() -> None:
    """The console script: what goes wrong for a known reason is one sentence, not a traceback."""
    try:
        app()
    except ConfigurationError as error:
        complain(str(error))
        sys.exit(ExitCode.CONFIGURATION)
    except (BackendError, CommandFailed) as error:
        complain(str(error))
        sys.exit(ExitCode.FAILED)


def complain(message: str) -> None:
    print(message, file=sys.stderr)


def show(*parts: RenderableType, to_stderr: bool = False) -> None:
    from rich.console import Console

    Console(stderr=to_stderr, highlight=False).print(*parts, sep="\n")


def accepts_settings(
    chosen: Iterable[Setting],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `f(resolved, **others)` a flag for each of the `chosen` settings."""
    rows = tuple(chosen)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            flags = {setting.name: given.pop(setting.name) for setting in rows}
            command(resolve(flags), **given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        run.__signature__ = inspect.Signature([*map(_flag, rows), *own])  # type: ignore[attr-defined]
        return run

    return decorate


def _flag(setting: Setting) -> inspect.Parameter:
    words = f"{setting.help}  [{setting.environment_name}; default: {setting.shown_default}]"
    option = typer.Option(setting.flag, help=words, metavar=setting.values, show_default=False)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[str | None, option],
    )


def only(*names: str) -> list[Setting]:
    return [setting for setting in TABLE if setting.name in names]


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelFlag = Annotated[
    str | None,
    typer.Option("--model", metavar="FOLDER_OR_REPO", help="A model of your own."),
]


@app.command()
@accepts_settings(TABLE)
def serve(resolved: Resolved) -> None:
    """Run the daemon in the foreground, until Ctrl-C or SIGTERM."""
    from daemon import logs, paths
    from daemon.serve import serve as run_daemon

    logs.start_logging(resolved.settings.log_level, paths.daemon_log())
    logging.getLogger("daemon.cli").info("settings: %s", resolved.chosen())
    raise typer.Exit(run_daemon(resolved.settings, token_file=paths.token_file()))


@app.command()
@accepts_settings(only("port"))
def status(resolved: Resolved, as_json: JsonFlag = False) -> None:
    """Say what runs, what is kept, and why the last requests read what they read."""
    from daemon.client import NotAnswering, fetch_status

    port = resolved.settings.port
    try:
        found = fetch_status(port)
    except NotAnswering as error:
        complain(str(error))
        raise typer.Exit(ExitCode.DEGRADED) from None
    if found is None:
        complain(f"Nothing listens on port {port}. Start a daemon with `mlxd serve`.")
        raise typer.Exit(ExitCode.STOPPED)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        from daemon.views.status import status_view

        show(status_view(found))
    raise typer.Exit(code_of(found))


def code_of(status: DaemonStatus) -> ExitCode:
    codes = {"ready": ExitCode.READY, "loading": ExitCode.STARTING}
    return codes.get(status.engine.model.state, ExitCode.DEGRADED)


@app.command()
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
        print(json.dumps(report.as_json(), indent=2))
    else:
        show(views.demo_summary(report))


def fetch_demo_model() -> str:
    """The demo's model, downloaded behind a progress bar if it is not there yet."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from daemon import paths
    from daemon.serve import fetch_demo_model as fetch

    folder = paths.demo_model_folder()
    if folder.is_dir():
        return str(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"Fetching {folder.name}", total=None)
        fetch(lambda done, total: bar.update(task, completed=done, total=total))
    return str(folder)


@app.command()
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
        print(json.dumps(report.as_json(), indent=2))
    else:
        show(*report.tables())


def refuse_unknown(flag: str, given: Iterable[str], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            raise ConfigurationError(f"{flag} is {word!r}, but has to be {' or '.join(known)}.")


@app.command()
def version() -> None:
    """Print the version."""
    print(f"mlxd {__version__}")


if __name__ == "__main__":
    main()
