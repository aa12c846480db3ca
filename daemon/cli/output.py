"""The only module that prints. What is printed, `daemon.views` builds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def complain(message: str) -> None:
    print(message, file=sys.stderr)


def write_line(line: str) -> None:
    """At once, also into a pipe."""
    print(line, flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def say(sentence: str, value: Any = None, as_json: bool = False) -> None:
    """The same in words or for programs."""
    print_json(value) if as_json else print(sentence)


def show(*parts: RenderableType, to_stderr: bool = False) -> None:
    """In a pipe without the blanks that fill up columns."""
    from rich.console import Console

    console = Console(stderr=to_stderr, highlight=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    lines = (line.rstrip() for line in captured.get().splitlines())
    print(*lines, sep="\n", file=console.file, flush=True)
