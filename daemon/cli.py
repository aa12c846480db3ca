"""The `mlxd` command: a thin client of the daemon, and the door to `serve`, `demo` and `bench`.

Prints what `daemon.views` builds; nothing else in mlxd prints. Each command imports what it needs
itself, so that `mlxd status` answers at once. Exit codes are part of the interface.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon import __version__
from daemon.errors import ConfigurationError
from daemon.settings import TABLE, Resolved, Setting, resolve

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    CONFIGURATION = 78


def main() -> None:
    """The console script."""
    try:
        app()
    except ConfigurationError as error:
        complain(str(error))
        sys.exit(ExitCode.CONFIGURATION)


def complain(message: str) -> None:
    print(f"mlxd: {message}", file=sys.stderr)


def show(*parts: RenderableType) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=False).print(*parts, sep="\n")


def accepts_settings(
    chosen: Iterable[Setting],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `f(resolved, **others)` a flag for each of the `chosen` settings."""
    rows = tuple(chosen)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            flags = {setting.name: given.pop(setting.name) for setting in rows}
            command(resolve(flags), **given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        run.__signature__ = inspect.Signature([*map(_flag, rows), *own])  # type: ignore[attr-defined]
        run.__doc__ = command.__doc__
        return run

    return decorate


def _flag(setting: Setting) -> inspect.Parameter:
    words = f"{setting.help}  [{setting.environment_name}; default: {setting.shown_default}]"
    option = typer.Option(setting.flag, help=words, metavar=setting.values, show_default=False)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


def only(*names: str) -> list[Setting]:
    return [setting for setting in TABLE if setting.name in names]


@app.command()
def version() -> None:
    """Print the version."""
    print(f"mlxd {__version__}")


if __name__ == "__main__":
    main()
