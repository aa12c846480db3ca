"""A start that cannot work: remembered for `mlxd status`, logged, and no crash under launchd."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer

from daemon.cli.exits import ExitCode
from daemon.errors import ConfigurationError

if TYPE_CHECKING:
    from daemon.starts import Starts


def remembers_refusals(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(supervised, …)` a memory of what refused it.

    In the foreground the error goes on to who called. Under launchd the exit is clean, because
    launchd would start what failed again and again, and a wrong setting does not mend itself.
    """

    @wraps(command)
    def run(*, supervised: bool, **given: Any) -> None:
        try:
            command(supervised=supervised, **given)
        except ConfigurationError as error:
            _remember(str(error), supervised)
            if not supervised:
                raise
            raise typer.Exit(ExitCode.READY) from error
        except SystemExit:  # told to stop, before there was anything to stop
            _starts(supervised).ended()
            raise

    return run


def _remember(why: str, supervised: bool) -> None:
    from daemon import logs, paths

    _starts(supervised).refused(why)
    if supervised:
        logs.cut_short(paths.terminal_log())
    logs.start_logging("info", paths.daemon_log(), to_terminal=False)
    logging.getLogger(__name__).error("this start was refused: %s", why)


def _starts(supervised: bool) -> Starts:
    from daemon import paths
    from daemon.starts import Starts

    return Starts(paths.starts_file(), counted=supervised)
