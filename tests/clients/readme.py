"""The README's lines for an agent, to be used as they are written.

An agent's part begins with its name in bold, followed by the file that its first block goes into,
if it has one; `sh` blocks are commands. The port is the only thing that is put in.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"
WRITTEN_PORT = "8642"
_ASSIGNMENT = re.compile(r"\w+=")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Lines:
    """`files`: path as written to content. `command`: the last one of the `sh` blocks, `before`
    those that come before it; what they assign is in `environment`."""

    files: dict[str, str]
    environment: dict[str, str]
    command: list[str]
    before: list[list[str]]


def python_for(heading: str, port: int) -> list[str]:
    """The Python blocks under a heading."""
    return [block[2] for block in _BLOCK.finditer(_part(heading, port)) if block[1] == "python"]


def _part(heading: str, port: int) -> str:
    text = README.read_text(encoding="utf-8").replace(WRITTEN_PORT, str(port))
    return re.split(r"^(?:\*\*|#+ )", text.split(f"\n**{heading}**", 1)[1], flags=re.MULTILINE)[0]


def lines_for(agent: str, port: int) -> Lines:
    part = _part(agent, port)
    files: dict[str, str] = {}
    commands: list[list[str]] = []
    for block in _BLOCK.finditer(part):
        if block[1] == "sh":
            joined = block[2].replace("\\\n", " ").splitlines()
            commands += [shlex.split(line) for line in joined if line.strip()]
        else:
            [*_, path] = re.findall(r"`([^`\n]+)`", part[: block.start()])
            files[path] = block[2]
    environment: dict[str, str] = {}
    for command in commands:
        if command[0] == "export":
            command.pop(0)
        while command and _ASSIGNMENT.match(command[0]):
            name, value = command.pop(0).split("=", 1)
            environment[name] = value
    *before, command = [each for each in commands if each] or [[agent]]
    return Lines(files, environment, command, before)
