"""A stream of events: never silent, whole frames, and always a word at the end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from daemon.api.sse import COMMENT, EventStream, KeepAlive
from daemon.chat import Ended, EndReason, Event, Opening, TextDelta
from daemon.errors import DaemonError, Overloaded
from daemon.generation import Usage

ENDED = Ended(EndReason.STOP, Usage(1, 0, 1, 1))


class Words:
    """A dialect whose frames are words."""

    def start(self, opening: Opening) -> bytes:
        return b"start\n\n"

    def encode(self, event: Event) -> bytes:
        return (event.text.encode() if isinstance(event, TextDelta) else b"end") + b"\n\n"

    def silence(self) -> bytes:
        return b"silence\n\n"

    def fail(self, error: DaemonError) -> bytes:
        return f"failed: {error.status}\n\n".encode()


class Sent(list[dict[str, Any]]):
    """What an application sent; `times` says when."""

    async def __call__(self, message: dict[str, Any]) -> None:
        self.append(message)

    @property
    def words(self) -> list[str]:
        return [each["body"].decode().strip() for each in self[1:] if each["body"]]


def stream(events: AsyncIterator[Event], keep_alive: KeepAlive) -> Sent:
    sent = Sent()
    asyncio.run(EventStream(sent, Words(), keep_alive).run(Opening(3), events))
    return sent


async def talk() -> AsyncIterator[Event]:
    yield TextDelta("one")
    yield TextDelta("two")
    yield ENDED


def test_an_answer_is_opened_written_and_closed() -> None:
    sent = stream(talk(), KeepAlive())
    assert sent[0]["status"] == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
    assert sent.words == ["start", "one", "two", "end"]
    assert [message.get("more_body") for message in sent[1:]] == [True] * 4 + [False]


def test_silence_is_filled_by_the_clock_with_comments_and_rarer_events() -> None:
    async def ponder() -> AsyncIterator[Event]:
        await asyncio.sleep(0.65)
        yield ENDED

    words = stream(ponder(), KeepAlive(comment_seconds=0.05, event_seconds=0.25)).words
    filling = words[1:-1]
    assert set(filling) == {COMMENT.decode().strip(), "silence"}
    assert filling.count("silence") == 2
    assert 4 <= filling.count(": reading") <= 11
    assert filling.index("silence") >= 2


def test_a_stream_that_talks_needs_no_filling() -> None:
    async def chatter() -> AsyncIterator[Event]:
        for _ in range(20):
            await asyncio.sleep(0.01)
            yield TextDelta("x")
        yield ENDED

    words = stream(chatter(), KeepAlive(comment_seconds=0.15, event_seconds=0.15)).words
    assert words == ["start", *["x"] * 20, "end"]


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("full"), 429), (RuntimeError("a bug"), 500)]
)
def test_a_failure_is_the_last_word(error: Exception, status: int) -> None:
    async def break_off() -> AsyncIterator[Event]:
        yield TextDelta("one")
        raise error

    sent = stream(break_off(), KeepAlive())
    assert sent.words == ["start", "one", f"failed: {status}"]
    assert sent[-1]["more_body"] is False


def test_a_stream_that_is_cut_says_so_to_its_client() -> None:
    async def cut() -> Sent:
        async def wait_forever() -> AsyncIterator[Event]:
            await asyncio.Event().wait()
            yield ENDED

        sent = Sent()
        task = asyncio.create_task(
            EventStream(sent, Words(), KeepAlive()).run(Opening(3), wait_forever())
        )
        await asyncio.sleep(0.01)
        task.cancel()
        await task
        return sent

    sent = asyncio.run(cut())
    assert sent.words == ["start", "failed: 503"]
    assert sent[-1]["more_body"] is False
