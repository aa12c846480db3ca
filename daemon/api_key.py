"""The key that clients have to send, where one is set: read from a file or from the keychain.

It never stands in a flag, a variable or the settings file, which others may see; those only say
where it is. A file that others could have read keeps no secret, and is refused.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from daemon.errors import ConfigurationError
from launchd.errors import ServiceError
from launchd.keychain import password
from launchd.tools import Run, run_tool

LEAST_CHARACTERS = 16
MOST_BYTES = 4096
_FOR_OTHERS = 0o077


def find_key(file: str | None, keychain: str | None, run: Run = run_tool) -> str | None:
    """The key in `file` or in the keychain's item; None where neither is named.

    Raises ConfigurationError, which never repeats what it found.
    """
    if file is not None:
        return _checked(_read(Path(file).expanduser()), file)
    if keychain is None:
        return None
    try:
        return _checked(password(keychain, run), f"the keychain's item {keychain}")
    except ServiceError as error:
        raise ConfigurationError(str(error)) from error


def _read(file: Path) -> str:
    """Checks what was opened, not what had the name a moment before."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            written = opened.read(MOST_BYTES)
    except OSError as error:
        raise ConfigurationError(
            f"The API key cannot be read from {file}: {error.strerror}."
        ) from None
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.getuid()):
        raise ConfigurationError(f"{file} has to be a file of this account to hold the API key.")
    if found.st_mode & _FOR_OTHERS:
        raise ConfigurationError(f"Others can read the API key in {file}: `chmod 600 {file}`.")
    return written.decode("latin-1")


def _checked(written: str, place: str) -> str:
    """Printable ASCII, so that a header can carry it."""
    key = written.strip()
    if not re.fullmatch(rf"[!-~]{{{LEAST_CHARACTERS},}}", key):
        raise ConfigurationError(
            f"The API key in {place} has to be at least {LEAST_CHARACTERS} characters of ASCII "
            "without blanks: `openssl rand -hex 24` makes one."
        )
    return key
