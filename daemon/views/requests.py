"""Requests, each with the reason of what it read."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from daemon.status import RequestStatus
from daemon.views.tables import Column, Layout
from daemon.views.words import count, duration, listed, plain, share, short_id

LAYOUT = Layout(
    (
        Column("request", 8, "left"),
        Column("session"),
        Column("phase", 12, "left"),
        Column("prompt", 9),
        Column("reused", 9),
        Column("read", 9),
        Column("out", 7),
    )
)


def requests_table(requests: Iterable[RequestStatus]) -> Iterable[RenderableType]:
    yield LAYOUT.header()
    for request in requests:
        yield LAYOUT.row(
            short_id(request.id),
            plain(request.session or "-"),
            progress(request),
            count(request.prompt),
            count(request.reused),
            count(request.read),
            count(request.generated),
            note=listed((_times(request), outcome(request)), ": "),
        )


def progress(request: RequestStatus) -> str:
    """The phase; while it reads, with how much of the prompt is there. An answer that was ended
    because it repeated itself is not just done."""
    if request.phase in ("reading", "parked"):
        return f"{request.phase} {share(request.reused + request.read, request.prompt)}"
    return "repetition" if request.finish == "repetition" else request.phase


def outcome(request: RequestStatus) -> str:
    """Why it failed, or why it read what it read."""
    return plain(request.error or request.why_read)


def _times(request: RequestStatus) -> str:
    if request.first_token_seconds is not None:
        return f"{duration(request.first_token_seconds)} to the first token"
    if request.phase == "waiting":
        return f"for {duration(request.waited_seconds)}"
    return f"{duration(request.seconds)}, no token yet" if request.phase == "reading" else ""
