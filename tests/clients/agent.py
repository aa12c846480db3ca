"""What the tests know of an agent, and what an agent can call its conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.clients.script import Call, Step

Edit = Callable[[str], str]
Write = Callable[[Path, str], Call]
Delegate = Callable[[str], Sequence[Step]]
Compose = Callable[[list[str], list[str]], list[str]]
SESSION, TASK = "the last session", "the task"
"""What stands for them among an agent's options."""


def in_order(flags: list[str], options: list[str]) -> list[str]:
    """The README's flags, then the options."""
    return [*flags, *options]


def command_first(flags: list[str], options: list[str]) -> list[str]:
    """The options begin with a command of its own, whose flags those of the README are."""
    return [options[0], *flags, *options[1:]]


class Session(Enum):
    """What an agent calls its conversation by, in a header or in the body."""

    NAMELESS = "nothing"
    FAMILY = "a name that its sub-agents use as well"
    OWN = "a name of each agent's own"
    PROCESS = "a name of each agent's own, a new one in each process"


@dataclass(frozen=True)
class Agent:
    """One agent with one of the APIs that it speaks.

    `heading` is its name in the README, `path` where its conversations are posted. `arguments`
    come behind the README's command, `resumed` when it goes on with its last session, which
    `last_session` names by the home and the project. Without TASK among them it is typed to in a
    terminal, as soon as `typed_when` is on its screen. `settle` answers, in its home, what it would
    ask a person at its first start.
    `write` is its tool call that writes a file, `read` finds one, `delegate` are the steps in
    which it has a sub-agent do a task, whose first prompt begins with so much of the agent's own
    (`shared`, of 1). `edit` changes what the README has in files and in the environment, for an
    API that it mentions beside the one it shows.
    """

    name: str
    heading: str
    command: Callable[[], Path]
    path: str
    arguments: tuple[str, ...]
    resumed: tuple[str, ...]
    write: Write
    delegate: Delegate | None = None
    shared: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    edit: Edit = str
    is_in_ci: bool = False
    session: Session = Session.NAMELESS
    loses_prefix_on_resume: bool = False
    asks_for_a_title: bool = False
    last_session: Callable[[Path, Path], str] | None = None
    settle: Callable[[Path, Path], None] | None = None
    typed_when: str = ""
    read: Callable[[Path], str] = Path.read_text
    compose: Compose = in_order
