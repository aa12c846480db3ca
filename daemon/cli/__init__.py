"""The `mlxd` command: a thin client of the daemon, and the door to `serve`, `demo` and `bench`.

Each command imports what it needs itself, so that `mlxd status` answers at once.
"""

from daemon.cli.commands import app, main
from daemon.cli.exits import ExitCode

__all__ = ["ExitCode", "app", "main"]
