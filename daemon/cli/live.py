"""A view of the daemon that renews itself in a terminal, once a second, until `q` or Ctrl-C.

The terminal is taken as it is found and given back so, however it ends.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from daemon.status import DaemonStatus
from daemon.views.top import Rates, top_view

FRAME_SECONDS = 1.0
QUIT = frozenset(b"qQ\x04")


def watch(fetch: Callable[[], DaemonStatus], console: Console) -> None:
    """Show what `fetch` says, again and again; what it raises ends the view."""
    status = fetch()
    live = Live(top_view(status), console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _keys() as quits_within:
        try:
            live.start(refresh=True)
            while not quits_within(FRAME_SECONDS):
                before, status = status, fetch()
                live.update(top_view(status, Rates.between(before, status)), refresh=True)
        finally:
            live.stop()


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Keys as they are pressed, without their echo: whether one that quits came within seconds."""
    descriptor = sys.stdin.fileno()
    found = termios.tcgetattr(descriptor)

    def quits_within(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([descriptor], [], [], left)
            if ready and QUIT.intersection(os.read(descriptor, 64) or QUIT):
                return True
        return False

    try:
        tty.setcbreak(descriptor)
        yield quits_within
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, found)
