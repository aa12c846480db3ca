"""`python -m daemon.cli` is `mlxd`."""

from daemon.cli import main

main()
