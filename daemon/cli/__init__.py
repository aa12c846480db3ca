"""The `mlxd` command: a thin client of the daemon, and the door to `serve`, `demo` and `bench`.

Each command imports what it needs itself, so that `mlxd status` answers at once. A daemon that is
told to stop while it still imports ends cleanly: that is arranged before anything else.
"""

import sys

from daemon.signals import exit_when_told

if sys.argv[1:2] == ["serve"]:
    exit_when_told()

from daemon.cli.commands import app, main
from daemon.cli.exits import ExitCode

__all__ = ["ExitCode", "app", "main"]
