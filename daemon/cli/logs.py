"""`mlxd logs`: what the daemon wrote down, also across the files that it rotated."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import typer

from daemon.cli.output import complain, write_line


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many of the last.")
    ] = 50,
) -> None:
    """Show the daemon's log. It holds no text of prompts or answers."""
    from daemon import log_lines, paths

    file = paths.daemon_log()
    if not file.exists():
        complain(f"There is no log yet: {file}")
    died = paths.terminal_log()
    if died.exists() and died.stat().st_size > 0:
        complain(f"What the service said when it died is in {died}")
    if not follow:
        for line in log_lines.last_lines(file, lines):
            write_line(line)
        return
    with suppress(KeyboardInterrupt):
        for line in log_lines.follow(file, lambda: time.sleep(log_lines.LOOK_SECONDS), lines):
            write_line(line)
