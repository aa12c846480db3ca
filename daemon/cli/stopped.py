"""Why no daemon runs, as far as this machine knows: what the service does, and what refused it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from daemon import paths
from daemon.errors import CommandFailed
from daemon.starts import Memory, Starts
from launchd.errors import ServiceError
from launchd.launchctl import AgentState
from launchd.specs import DAEMON_LABEL


def why_stopped() -> list[str]:
    """A sentence each; none if nothing is known."""
    return [*service_words(_state()), *refusal_words(Starts(paths.starts_file()).read())]


def service_words(state: AgentState | None) -> Iterator[str]:
    """`state` is None where no service is installed."""
    match state:
        case None:
            pass
        case AgentState(pid=int(pid)):
            yield f"The service's process {pid} runs, but does not listen there (yet)."
        case AgentState(has_crashed=True):
            how = state.killed_by or f"exit code {state.last_exit}"
            yield (
                f"The service crashed ({how}); launchd starts it again within seconds. "
                "`mlxd logs` shows what happened."
            )
        case _:
            yield "The service is installed, and stopped: `mlxd start` starts it."


def refusal_words(memory: Memory) -> Iterator[str]:
    if memory.refusal:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(memory.refused_at))
        yield f"The last start, at {at}, was refused: {memory.refusal}"


def _state() -> AgentState | None:
    """launchd is asked only where there is a plist: this has to be quick."""
    if not (paths.launch_agents_folder() / f"{DAEMON_LABEL}.plist").is_file():
        return None
    from daemon.cli.this_mac import this_mac

    try:
        return this_mac().agent.state()
    except (CommandFailed, ServiceError):
        return None
