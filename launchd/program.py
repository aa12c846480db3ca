"""Which path of the command stays valid: the one that a plist may name.

`uv tool` and pipx put a link to the command into a folder on the PATH, and Homebrew does likewise;
an upgrade may replace everything behind the link. So the link is named, where there is one, else
the script in its environment, and the interpreter only where there is no script at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from launchd.errors import ServiceError

COMMAND = "mlxd"
EPHEMERAL = (
    ("uv", "archive-v0"),
    ("uv", "builds-v0"),
    ("uv", "environments-v2"),
    ("pipx", ".cache"),
)
"""Folders under which `uvx`, `uv run` and `pipx run` make environments that they throw away."""


def stable_program(
    interpreter: Path, module: str, search: Iterable[Path], command: str = COMMAND
) -> Sequence[str]:
    """The words that start `command` now and after an upgrade, the first an absolute path.

    `interpreter` is this process's, links not followed; `search` are the folders of the PATH.
    Raises ServiceError for an environment that will not be there tomorrow.
    """
    script = interpreter.parent / command
    if any(set(folders) <= set(interpreter.parts) for folders in EPHEMERAL):
        raise ServiceError(
            f"{interpreter.parent} is made for one run only: install mlxd with "
            "`uv tool install` or `pipx install` first, then run `mlxd install`."
        )
    if not _is_program(script):
        return (str(interpreter), "-m", module)
    links = (folder / command for folder in search if folder.is_absolute())
    found = (link for link in links if _is_link_to(link, script))
    return (str(next(found, script)),)


def _is_link_to(link: Path, script: Path) -> bool:
    """Whether `link` is another name of the script, outside of its environment."""
    is_outside = not link.is_relative_to(script.parent.parent)
    return is_outside and _is_program(link) and link.resolve() == script.resolve()


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
