"""One request's record in sentences: what it sent, what was reused, and why the rest was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from daemon.status import ReadReason, RequestStatus
from daemon.views.tables import WIDEST
from daemon.views.words import count, counted, duration, plain, share


def why_view(request: RequestStatus, now: float) -> RenderableType:
    """`now` is a date in seconds of the epoch, as `arrived_at` is."""
    paragraphs = [Text(_headline(request, now), "bold")]
    paragraphs += [Text(" ".join(sentences)) for sentences in _sentences(request)]
    parts: list[RenderableType] = []
    for paragraph in paragraphs:
        paragraph.overflow = "fold"
        parts += [Constrain(paragraph, WIDEST)]
    return Group(*parts, *_texts(request.reason))


def _headline(request: RequestStatus, now: float) -> str:
    session = f" of session {plain(request.session)}" if request.session else ""
    since = f", {duration(now - request.arrived_at)} ago" if request.arrived_at else ""
    return f"Request {plain(request.id)}{session}{since}: {request.phase}"


def _sentences(request: RequestStatus) -> Iterator[Iterable[str]]:
    yield _tokens(request)
    yield _times(request)
    reason = request.reason
    why = reason.sentence if reason else request.why_read
    if why:
        yield plain(why), *_place(request)
    if request.error:
        yield (f"It failed: {plain(request.error)}",)


def _tokens(request: RequestStatus) -> Iterator[str]:
    yield f"Its prompt has {counted(request.prompt, 'token')}:"
    part = share(request.reused, request.prompt)
    left = request.prompt - request.reused - request.read
    disk = f"{count(request.from_disk)} of them from disk, " if request.from_disk else ""
    yield f"{count(request.reused)} reused ({part}), {disk}{count(request.read)} read" + (
        f", {count(left)} not read." if left > 0 else "."
    )
    yield f"{counted(request.generated, 'token')} generated."


def _times(request: RequestStatus) -> Iterator[str]:
    if request.phase == "waiting":
        yield f"It has been waiting for {duration(request.waited_seconds)}."
        return
    yield f"It waited {duration(request.waited_seconds)} for its turn;"
    if request.first_token_seconds is None:
        yield "no token was generated;"
    else:
        yield f"the first token came {duration(request.first_token_seconds)} after it arrived;"
    yield f"{duration(request.seconds)} in all."


def _place(request: RequestStatus) -> Iterator[str]:
    """Where it goes beyond what is stored, unless the sentence says it."""
    reason = request.reason
    if reason is None or reason.message_index is None:
        return
    message = f"message {reason.message_index}"
    if 0 < reason.left_at < request.prompt and message not in reason.sentence:
        role = f" ({plain(reason.message_role)})" if reason.message_role else ""
        yield f"What is new begins after {counted(reason.left_at, 'token')}, in {message}{role}."


def _texts(reason: ReadReason | None) -> Iterator[RenderableType]:
    """Both sides of where the prompt left the known text, for who may see them."""
    if reason is None or (reason.stored_text is None and reason.prompt_text is None):
        return
    yield Text()
    yield Text("Its session went on differently before:", "bold")
    for name, text in (("stored", reason.stored_text), ("sent", reason.prompt_text)):
        shown = f"{name:>8}  {_quoted(text)}"
        yield Constrain(Padding(Text(shown, overflow="fold"), (0, 0, 0, 0)), WIDEST)


def _quoted(text: str | None) -> str:
    """With its line ends and tabs as they are written in programs."""
    return "nothing" if text is None else plain(repr(text))
