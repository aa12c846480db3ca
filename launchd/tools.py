"""How macOS' own command-line tools are run: the one edge, which tests replace by a recorded fake.

A tool that is missing, or that hangs, ends as one that failed: with an exit code and words.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

Completed = subprocess.CompletedProcess[str]
Run = Callable[[Sequence[str]], Completed]
"""Runs a tool to its end. Exit code, output and error text say how that went; nothing is raised."""

TOOL_SECONDS = 60.0
NOT_FOUND, TIMED_OUT = 127, 124
"""The exit codes that shells have for a tool that is not there, and for one that did not end."""


def run_tool(arguments: Sequence[str], seconds: float = TOOL_SECONDS) -> Completed:
    """A `Run` for the real tools, which may take so many seconds."""
    try:
        return subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        return Completed(arguments, NOT_FOUND, "", f"{arguments[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        said = f"{arguments[0]} did not end within {seconds:.0f} s"
        return Completed(arguments, TIMED_OUT, "", said)
