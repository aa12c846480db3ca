"""The LaunchAgent's property list: what it says, and how it gets to its place.

Pure but for `write`. Every path in it is absolute, because launchd knows no `~` and no shell; the
environment it names is all that the agent gets beside `HOME`, `USER` and the like. Secrets have no
place in it: everybody may read the file.
"""

from __future__ import annotations

import os
import plistlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

FILE_MODE = 0o644
"""launchd refuses a file that others may write."""

THROTTLE_SECONDS = 10
OPEN_FILES = 10_240
"""As many as macOS lets a process have at most, unless it was set up otherwise."""

EXIT_MARGIN_SECONDS = 15
"""launchd kills what has not ended by then: after the last words, the last chunk, a write that the
disk is slow with."""

OWNER_ONLY = 0o077


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """An agent of one account: the first word of `program` is an absolute path, and `log` takes
    what it writes to its terminal. `shutdown_seconds` is what it may take to end. One that
    `restarts` is started again after a crash, and after no other end.
    """

    label: str
    program: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    shutdown_seconds: float = 5.0
    restarts: bool = True


def rendered(spec: AgentSpec) -> bytes:
    """The file's text; the same for the same spec, so that a change can be seen."""
    return plistlib.dumps(_fields(spec), sort_keys=True)


def _fields(spec: AgentSpec) -> dict[str, Any]:
    assert os.path.isabs(spec.program[0]), "launchd searches no PATH"
    assert spec.log.is_absolute(), "launchd knows no working directory of ours"
    limits = {"NumberOfFiles": OPEN_FILES}
    return {
        "Label": spec.label,
        "ProgramArguments": list(spec.program),
        "EnvironmentVariables": dict(spec.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False} if spec.restarts else False,
        "ThrottleInterval": THROTTLE_SECONDS,
        "ExitTimeOut": int(spec.shutdown_seconds) + EXIT_MARGIN_SECONDS,
        "ProcessType": "Interactive",
        "LimitLoadToSessionType": "Aqua",
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
        "Umask": OWNER_ONLY,
        "WorkingDirectory": "/",
        "StandardOutPath": str(spec.log),
        "StandardErrorPath": str(spec.log),
    }


def write(path: Path, content: bytes) -> None:
    """Put the whole file in its place, or leave what was there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, FILE_MODE)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def environment_of(content: bytes) -> dict[str, str]:
    """The environment that a plist gives its agent; none if it is no plist of ours."""
    try:
        found = plistlib.loads(content).get("EnvironmentVariables", {})
        return {str(name): str(value) for name, value in found.items()}
    except (plistlib.InvalidFileException, ValueError, AttributeError, ExpatError):
        return {}


def program_of(content: bytes) -> str:
    """The path of the program that a plist starts; "" if it is no plist of ours."""
    try:
        return str(plistlib.loads(content)["ProgramArguments"][0])
    except (plistlib.InvalidFileException, ValueError, LookupError, TypeError, ExpatError):
        return ""


def read(path: Path) -> bytes | None:
    """What stands there; None if nothing does. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
