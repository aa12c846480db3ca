"""Prompts that take long to encode, or cannot fit: nobody else waits for them, and nobody left."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Message

from daemon.api.endpoint import LARGE_BYTES, REQUEST_ID, Door, Endpoint
from daemon.api.openai_chat import OpenAIChat
from daemon.chat import ChatRequest
from mlx_backend.errors import EncodingStopped, PromptTooLong
from mlx_backend.interface import ShouldStop, never
from mlx_backend.messages import NO_EFFORT, Effort, Prompt
from tests.engine.harness import Bench, run, running, until
from tests.fakes import BytePrompts

LARGE = "a" * LARGE_BYTES


class SlowPrompts(BytePrompts):
    """Encodes nothing large for five seconds, until it is told to stop or `opens`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.opens = threading.Event()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        should_stop: ShouldStop = never,
        effort: Effort = NO_EFFORT,
    ) -> Prompt:
        text = messages[0]["content"]
        name, size = text[-1], len(text)
        self.begun.append(name)
        for _ in range(1000):
            if size < LARGE_BYTES or self.opens.wait(0.005):
                break
            if should_stop():
                self.stopped.append(name)
                raise EncodingStopped("nobody waits")
        if size >= LARGE_BYTES:
            raise PromptTooLong(1234, 1000)
        return super().chat(messages, tools, template_options)


class NotingChat(OpenAIChat):
    """Notes on which thread it parses."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def parse(self, body: bytes) -> ChatRequest:
        self.threads.append(threading.get_ident())
        return super().parse(body)


class Counter:
    """An endpoint of an engine that runs; what is answered is one status and one body."""

    def __init__(self, bench: Bench) -> None:
        self.prompts = bench.models[-1].prompts = SlowPrompts()
        self.dialect = NotingChat()
        self._endpoint = Endpoint(self.dialect, Door(bench.engine))

    def ask(self, text: str, leaves: asyncio.Event | None = None) -> asyncio.Task[tuple[int, Any]]:
        return asyncio.create_task(self._ask(text, leaves or asyncio.Event()))

    async def _ask(self, text: str, leaves: asyncio.Event) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        coming = [{"type": "http.request", "body": json.dumps(body).encode()}]
        sent: list[Message] = []

        async def receive() -> Message:
            if coming:
                return coming.pop()
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "headers": headers, REQUEST_ID: f"req_{text[-1]}"}
        await self._endpoint(scope, receive, send)
        if not sent:
            return 0, None
        return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_prompt_too_long_to_be_counted_overflows_in_the_words_agents_know() -> None:
    async def scenario() -> None:
        async with running() as bench:
            counter = Counter(bench)
            counter.prompts.opens.set()
            status, answer = await counter.ask(LARGE)
            context = bench.models[-1].info.context_size
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert answer["error"]["param"] == "messages"
        assert answer["error"]["message"].startswith(
            f"This model's maximum context length is {context} tokens. "
            "However, your messages resulted in more than 1234 tokens"
        )

    run(scenario())


def test_large_prompts_are_encoded_one_by_one_and_a_small_one_beside_them() -> None:
    async def scenario() -> None:
        async with running() as bench:
            counter = Counter(bench)
            large = [counter.ask(LARGE + name) for name in "123"]
            await until(lambda: bool(counter.prompts.begun))
            status, _ = await counter.ask("small s")
            assert (status, len(counter.prompts.begun)) == (200, 2)
            counter.prompts.opens.set()
            assert [(await task)[0] for task in large] == [400, 400, 400]

    run(scenario())


def test_a_client_that_leaves_ends_the_encoding_of_its_prompt() -> None:
    async def scenario() -> None:
        async with running() as bench:
            counter, leaves = Counter(bench), asyncio.Event()
            task = counter.ask(LARGE + "1", leaves)
            await until(lambda: counter.prompts.begun == ["1"])
            leaves.set()
            assert await task == (0, None)
            assert counter.prompts.stopped == ["1"]

    run(scenario())


def test_a_daemon_that_stops_ends_what_is_being_encoded() -> None:
    async def scenario() -> None:
        async with running() as bench:
            counter = Counter(bench)
            task = counter.ask(LARGE + "1")
            await until(lambda: counter.prompts.begun == ["1"])
            task.cancel()
            await until(lambda: counter.prompts.stopped == ["1"])
            assert (await task)[0] == 503

    run(scenario())


def test_only_small_bodies_are_parsed_on_the_event_loop() -> None:
    async def scenario() -> None:
        async with running() as bench:
            counter = Counter(bench)
            counter.prompts.opens.set()
            await counter.ask("small")
            await counter.ask(LARGE)
            loop = threading.get_ident()
            assert [thread == loop for thread in counter.dialect.threads] == [True, False]

    run(scenario())
