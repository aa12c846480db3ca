"""How many files the process may have open, kept out of mlx-lm's hands.

Importing mlx-lm sets the limits to (2048, 4096): that takes away a higher limit for good, and
fails where 4096 is more than allowed. A server's sockets need the higher one.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

_WANTED = 4096


@contextmanager
def open_file_limit_kept() -> Iterator[None]:
    """Limits cannot be changed in this block; after it, at least 4096 files if that is allowed."""
    set_limit = resource.setrlimit
    resource.setrlimit = lambda kind, limits: None
    try:
        yield
    finally:
        resource.setrlimit = set_limit
        _raise_limit()


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
