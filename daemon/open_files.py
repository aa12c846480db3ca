"""How many files, and so connections, the process may have open.

launchd starts agents with 256; the limit may be raised up to the hard one, and on macOS no
further than the kernel's own, whatever the hard one says.
"""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

WANTED = 8192
RESERVED = 96
"""For everything that is no client's connection: the log, the model's files, libraries, pipes."""


def raise_limit(wanted: int = WANTED) -> int:
    """Allow up to `wanted` open files, as far as that is allowed; how many there may be now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= reachable:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError) as error:
        log.warning("no more than %d files can be open at once: %s", soft, error)
        return soft
    return reachable


def most_connections(open_files: int) -> int:
    """How many clients may be connected, so that files can still be opened."""
    return max(open_files - RESERVED, open_files // 2)
