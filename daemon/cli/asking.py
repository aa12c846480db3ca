"""The commands that ask a running daemon: thin clients of its admin API."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from daemon import __version__
from daemon.cli.disk import CacheAction, keeper, on_disk
from daemon.cli.exits import ExitCode
from daemon.cli.flags import accepts_settings, only, own_disk_folder_of
from daemon.cli.output import complain, print_json, say, show
from daemon.errors import NotRunning
from daemon.settings import Resolved

if TYPE_CHECKING:
    from daemon.client import Client
    from daemon.status import CacheCheck, DaemonStatus

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@accepts_settings(only("port"))
def status(resolved: Resolved, as_json: JsonFlag = False) -> None:
    """Say what runs, what is kept, and why the last requests read what they read."""
    try:
        found = client_of(resolved).status()
    except NotRunning as error:
        from daemon.cli.stopped import why_stopped

        raise NotRunning("\n".join([str(error), *why_stopped()])) from None
    if as_json:
        print_json(asdict(found))
    else:
        from daemon.views.status import status_view

        show(status_view(found))
    if found.version != __version__:
        from daemon.client import other_version

        complain(other_version(found.version))
    raise typer.Exit(code_of(found))


def client_of(resolved: Resolved) -> Client:
    from daemon import paths
    from daemon.client import Client

    return Client(resolved.settings.port, paths.token_file())


def code_of(status: DaemonStatus) -> ExitCode:
    model = status.engine.model
    if model.is_serving:
        return ExitCode.READY
    return ExitCode.STARTING if model.state == "loading" else ExitCode.DEGRADED


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

    from daemon.cli.live import watch

    watch(client.status, Console(highlight=False))


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


@accepts_settings(only("port", "disk_cache_folder"))
def cache(
    resolved: Resolved,
    action: Annotated[
        CacheAction | None,
        typer.Argument(
            help="Forget everything, or walk the invariants; of the disk, read and verify every "
            "file. Without: list."
        ),
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Draw the tree.")] = False,
    disk: Annotated[
        bool, typer.Option("--disk", help="What is on disk, also without a daemon.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List what the prefix cache holds, in memory or on disk; empty or check it."""
    client = client_of(resolved)
    if disk:
        on_disk(keeper(client, own_disk_folder_of(resolved.settings)), action, as_json)
        return
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
