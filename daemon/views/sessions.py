"""Sessions: what they sent, what was reused, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from daemon.status import SessionStatus
from daemon.views.tables import Column, Layout
from daemon.views.words import age, count, counted, duration, listed, plain, share, size

LAYOUT = Layout(
    (
        Column("session"),
        Column("turns", 6),
        Column("prompt", 9),
        Column("reused", 6),
        Column("out", 9),
        Column("kept", 9),
        Column("bytes", 7),
        Column("age", 5),
    )
)


def sessions_view(sessions: Iterable[SessionStatus]) -> RenderableType:
    """All of them, the one that was used last at the top."""
    ordered = sorted(sessions, key=lambda session: session.idle_seconds)
    return Group(*sessions_table(ordered)) if ordered else Text("No sessions.")


def sessions_table(sessions: Iterable[SessionStatus]) -> Iterable[RenderableType]:
    yield LAYOUT.header()
    for session in sessions:
        yield LAYOUT.row(
            plain(session.id),
            count(session.turns),
            count(session.prompt),
            share(session.reused, session.prompt),
            count(session.generated),
            count(session.live_tokens),
            size(session.live_bytes),
            age(session.age_seconds),
            note=listed(_remarks(session), "; "),
        )


def _remarks(session: SessionStatus) -> Iterator[str]:
    if session.label != session.id:
        yield plain(session.label)
    if session.family and session.family not in (session.id, session.parent):
        yield f"family {plain(session.family)}"
    if session.parent:
        yield f"forked from {plain(session.parent)}"
    if session.cancelled:
        yield f"{count(session.cancelled)} cancelled"
    if session.running:
        yield f"{counted(session.running, 'request')} running"
    else:
        yield f"idle {duration(session.idle_seconds)}"
