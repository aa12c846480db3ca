"""The daemon's own token: proof that who asks may read this account's files.

The loopback interface is shared by all accounts of a machine; this file is not. It is made at the
first start, mode 0600 in a folder of mode 0700, and read by the daemon and by the command line.
One that others could have read is worth nothing and is replaced.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOKEN_BYTES = 32
FOLDER_MODE, FILE_MODE = 0o700, 0o600
_FOR_OTHERS = 0o077


def own_token(file: Path) -> str:
    """The token in `file`, made first if it is not there. Raises OSError if it cannot be kept.

    Of daemons that start together the first one makes it and the others wait for it.
    """
    file.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    file.parent.chmod(FOLDER_MODE)
    with _locked(file.parent):
        found = read_token(file)
        if found is not None and _is_private(file):
            return found
        return _made(file)


def read_token(file: Path) -> str | None:
    """The token in `file`, for who asks a daemon; None if there is none or it may not be read."""
    try:
        return file.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _is_private(file: Path) -> bool:
    found = file.lstat()
    is_ours = found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode)
    return is_ours and not found.st_mode & _FOR_OTHERS


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one at a time in here, over all threads and processes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _made(file: Path) -> str:
    """A new token. Written whole before it has its name: nobody finds half of one."""
    made = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(token + "\n")
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)
    return token
