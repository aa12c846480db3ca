"""The `mlxd` command: a thin client of the daemon, and the door to `serve`, `demo` and `bench`.

Prints what `daemon.views` builds; nothing else in mlxd prints. Each command imports what it needs
itself, so that `mlxd status` answers at once. Exit codes are part of the interface.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon import __version__
from daemon.errors import CommandFailed, ConfigurationError, NotAnswering, NotRunning, Refused
from daemon.flags import accepts_settings, only
from daemon.settings import TABLE, Resolved
from mlx_backend.errors import BackendError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from daemon.client import Client
    from daemon.demo.report import Turn
    from daemon.status import CacheCheck, DaemonStatus

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
        sys.exit(code_for(error))


def code_for(error: Exception) -> ExitCode:
    match error:
        case NotRunning():
            return ExitCode.STOPPED
        case NotAnswering() | Refused(status=503):
            return ExitCode.DEGRADED
        case _:
            return ExitCode.FAILED


def complain(message: str) -> None:
    print(message, file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def say(sentence: str, value: Any, as_json: bool) -> None:
    """The same in words or for programs."""
    print_json(value) if as_json else print(sentence)


def show(*parts: RenderableType, to_stderr: bool = False) -> None:
    """In a pipe without the blanks that fill up columns."""
    from rich.console import Console

    console = Console(stderr=to_stderr, highlight=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    lines = (line.rstrip() for line in captured.get().splitlines())
    print(*lines, sep="\n", file=console.file)


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
    found = client_of(resolved).status()
    if as_json:
        print_json(asdict(found))
    else:
        from daemon.views.status import status_view

        show(status_view(found))
    raise typer.Exit(code_of(found))


def client_of(resolved: Resolved) -> Client:
    from daemon import paths
    from daemon.client import Client

    return Client(resolved.settings.port, paths.token_file())


def code_of(status: DaemonStatus) -> ExitCode:
    codes = {"ready": ExitCode.READY, "loading": ExitCode.STARTING}
    return codes.get(status.engine.model.state, ExitCode.DEGRADED)


@app.command()
@accepts_settings(only("port"))
def top(resolved: Resolved, as_json: JsonFlag = False) -> None:
    """Watch the daemon at work; `q` ends it. In a pipe: one look."""
    client = client_of(resolved)
    if as_json:
        print_json(asdict(client.status()))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        from daemon.views.top import top_view

        show(top_view(client.status()))
        return
    from rich.console import Console

    from daemon.top import watch

    watch(client.status, Console(highlight=False))


@app.command()
@accepts_settings(only("port"))
def why(
    resolved: Resolved,
    request: Annotated[
        str | None,
        typer.Argument(
            help="A request's id or its beginning, or a session for its last one. "
            "Without: the last request of all.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say in sentences what one request reused, and why it read the rest."""
    found = client_of(resolved).request(request)
    if as_json:
        print_json(asdict(found))
        return
    from daemon.views.why import why_view

    show(why_view(found, time.time()))


class CacheAction(StrEnum):
    CLEAR = "clear"
    CHECK = "check"


@app.command()
@accepts_settings(only("port"))
def cache(
    resolved: Resolved,
    action: Annotated[
        CacheAction | None,
        typer.Argument(help="Forget everything, or walk the invariants. Without: list."),
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Draw the tree.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List what the prefix cache holds; empty or check it."""
    client = client_of(resolved)
    match action:
        case None:
            contents = client.cache()
            if as_json:
                print_json(asdict(contents))
                return
            from daemon.views.cache import cache_view

            show(cache_view(contents, as_tree=tree))
        case CacheAction.CLEAR:
            left = client.clear_cache()
            say(f"Cleared: {left.entries:,} entries are left.", asdict(left), as_json)
        case CacheAction.CHECK:
            tell_check(client.check_cache(), as_json)


def tell_check(found: CacheCheck, as_json: bool) -> None:
    sound = f"Sound: every invariant holds, with {found.cache.entries:,} entries."
    broken = f"Not sound: {found.problem}. `mlxd cache clear` makes it anew; please report it."
    say(sound if found.is_sound else broken, asdict(found), as_json)
    if not found.is_sound:
        raise typer.Exit(ExitCode.FAILED)


class SessionAction(StrEnum):
    RESET = "reset"
    RM = "rm"


@app.command()
@accepts_settings(only("port"))
def sessions(
    resolved: Resolved,
    action: Annotated[
        SessionAction | None,
        typer.Argument(help="Forget a session's state, or the session. Without: list."),
    ] = None,
    session: Annotated[str | None, typer.Argument(metavar="ID", show_default=False)] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the open sessions; reset or remove one."""
    client = client_of(resolved)
    if action is None:
        found = client.sessions()
        if as_json:
            print_json(asdict(found))
            return
        from daemon.views.sessions import sessions_view

        show(sessions_view(found.data))
    elif session is None:
        raise typer.BadParameter(f"which one? `mlxd sessions {action} ID`")
    elif action is SessionAction.RESET:
        after = client.reset_session(session)
        say(f"Reset: {session} starts afresh, and keeps its counters.", asdict(after), as_json)
    else:
        client.delete_session(session)
        say(f"Removed: {session}.", {"id": session, "deleted": True}, as_json)


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
        print_json(report.as_json())
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
        print_json(report.as_json())
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
