"""The two agents of an account: the daemon, and the menu bar if it is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from launchd.plist import AgentSpec

DAEMON_LABEL = "dev.mlxd.daemon"
MENUBAR_LABEL = "dev.mlxd.menubar"
SUPERVISED = "--supervised"
"""Tells the daemon that launchd runs it: what cannot work exits 0, and nothing spins."""


def daemon_spec(
    program: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    shutdown_seconds: float,
) -> AgentSpec:
    """`program` starts the command, `log` takes what it writes to its terminal."""
    words = (*program, "serve", SUPERVISED)
    return AgentSpec(DAEMON_LABEL, words, log, dict(environment), shutdown_seconds)


def menubar_spec(program: Sequence[str], environment: Mapping[str, str], log: Path) -> AgentSpec:
    """One that cannot run, as without its extra, is not tried again until the next login."""
    words = (*program, "menubar")
    return AgentSpec(MENUBAR_LABEL, words, log, dict(environment), restarts=False)
