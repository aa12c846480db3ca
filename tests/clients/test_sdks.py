"""The client libraries of OpenAI and Anthropic against a daemon: a loop with a tool, and a cut.

Everything goes over a socket and through the libraries' own streams and types. The same loop runs
with each API: two turns with a call each, the second by a new client, a stream left in the middle,
and one more turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import anthropic
import openai
import pytest

from tests.clients.observed import ObservedDaemon, conversation, observed, overread, refused
from tests.clients.script import Call, Step
from tests.clients.tiny_folder import write_folder

CONTENT = "".join(f"line {number} of the file: {number * 41}\n" for number in range(40))
THOUGHT = "The user wants a file, so I write one. " * 5
FINAL_WORDS = "The file is there, and this is all that there is to say about it. " * 4
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
    "additionalProperties": False,
}


def about(path: str) -> str:
    """Different with each API, so that none finds what another has read."""
    return f"{path}: write a file to the disk. " + "Mind what is there already. " * 20


def writing(path: str) -> Call:
    return Call("write_file", {"path": path, "content": CONTENT})


SCRIPTS = {
    "begin": [
        Step("I write it now.", [writing("first.txt")], think=THOUGHT),
        Step(FINAL_WORDS),
    ],
    "go-on": [Step("", [writing("second.txt")]), Step(FINAL_WORDS)],
    "ramble": [Step("I go on and on about it. " * 100, token_seconds=0.01)],
}


class Loop(Protocol):
    """One conversation with one API. `files` is what its tool wrote."""

    files: dict[str, str]

    def renew(self) -> None:
        """Go on with a new client, as a new process would."""

    def close(self) -> None: ...

    def turn(self, text: str) -> str:
        """Say `text`, run the calls, and return the final words."""

    def cut(self, text: str) -> str:
        """Say `text`, leave in the middle of the answer, and keep what was heard of it."""


class ChatLoop:
    path = "/v1/chat/completions"

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self.files: dict[str, str] = {}
        self._client: Any = None
        self._messages: list[Any] = []
        self.renew()

    def renew(self) -> None:
        self.close()
        self._client = openai.OpenAI(base_url=f"{self._base_url}/v1", api_key="none")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def turn(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        while True:
            with self._stream() as stream:
                for _ in stream:
                    pass
                message = stream.get_final_completion().choices[0].message
            self._messages.append(message.to_dict())
            for call in message.tool_calls or ():
                asked = json.loads(call.function.arguments)
                self.files[asked["path"]] = asked["content"]
                self._messages.append({"role": "tool", "tool_call_id": call.id, "content": "Done."})
            if not message.tool_calls:
                return message.content or ""

    def cut(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        heard = ""
        with self._stream() as stream:
            for event in stream:
                if event.type == "content.delta":
                    heard = event.snapshot
                if len(heard) > 100:
                    break
        self._messages.append({"role": "assistant", "content": heard})
        return heard

    def _stream(self) -> Any:
        function = {"name": "write_file", "description": about(self.path), "parameters": SCHEMA}
        return self._client.chat.completions.stream(
            model="default",
            messages=self._messages,
            tools=[{"type": "function", "function": {**function, "strict": True}}],
            stream_options={"include_usage": True},
        )


class ResponsesLoop:
    path = "/v1/responses"

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self.files: dict[str, str] = {}
        self._client: Any = None
        self._input: list[Any] = []
        self.renew()

    def renew(self) -> None:
        self.close()
        self._client = openai.OpenAI(base_url=f"{self._base_url}/v1", api_key="none")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def turn(self, text: str) -> str:
        self._input.append({"role": "user", "content": text})
        while True:
            with self._stream() as stream:
                for _ in stream:
                    pass
                response = stream.get_final_response()
            self._input += [item.to_dict(exclude_none=True) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            for call in calls:
                asked = json.loads(call.arguments)
                self.files[asked["path"]] = asked["content"]
                told = {"type": "function_call_output", "call_id": call.call_id, "output": "Done."}
                self._input.append(told)
            if not calls:
                return response.output_text

    def cut(self, text: str) -> str:
        self._input.append({"role": "user", "content": text})
        heard = ""
        with self._stream() as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    heard += event.delta
                if len(heard) > 100:
                    break
        self._input.append({"role": "assistant", "content": heard})
        return heard

    def _stream(self) -> Any:
        tool = {
            "type": "function",
            "name": "write_file",
            "description": about(self.path),
            "strict": True,
        }
        return self._client.responses.stream(
            model="default",
            input=self._input,
            tools=[{**tool, "parameters": SCHEMA}],
            store=False,
        )


class MessagesLoop:
    path = "/v1/messages"

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self.files: dict[str, str] = {}
        self._client: Any = None
        self._messages: list[Any] = []
        self.renew()

    def renew(self) -> None:
        self.close()
        self._client = anthropic.Anthropic(base_url=self._base_url, api_key="none")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def turn(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        while True:
            with self._stream() as stream:
                message = stream.get_final_message()
            self._messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            results = []
            for call in calls:
                self.files[call.input["path"]] = call.input["content"]
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": "Done."})
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            self._messages.append({"role": "user", "content": results})

    def cut(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        heard = ""
        with self._stream() as stream:
            for piece in stream.text_stream:
                heard += piece
                if len(heard) > 100:
                    break
        self._messages.append({"role": "assistant", "content": heard})
        return heard

    def _stream(self) -> Any:
        return self._client.messages.stream(
            model="default",
            max_tokens=4000,
            messages=self._messages,
            tools=[{"name": "write_file", "description": about(self.path), "input_schema": SCHEMA}],
        )


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedDaemon]:
    folder = tmp_path_factory.mktemp("sdks")
    with observed(write_folder(folder / "model"), folder / "daemon", SCRIPTS) as running:
        yield running


@pytest.mark.parametrize("api", [ChatLoop, ResponsesLoop, MessagesLoop])
def test_a_client_library_works_in_a_loop_and_reads_nothing_twice(
    api: Any, daemon: ObservedDaemon, request: pytest.FixtureRequest
) -> None:
    loop: Loop = api(daemon.base_url)
    request.addfinalizer(loop.close)
    assert loop.turn("[script:begin] Write the first file.") == FINAL_WORDS
    loop.renew()
    assert loop.turn("[script:go-on] Write the second file.") == FINAL_WORDS
    assert loop.files == {"first.txt": CONTENT, "second.txt": CONTENT}
    assert "on and on" in loop.cut("[script:ramble] Tell me about it.")
    assert loop.turn("[script:go-on] And write it again.") == FINAL_WORDS
    exchanges = [each for each in daemon.exchanges() if each.path == api.path]
    assert not refused(exchanges)
    requests = conversation(exchanges, "begin")
    assert [each.seen["phase"] for each in requests if each.seen] == [
        *["done"] * 4,
        "cancelled",
        *["done"] * 2,
    ]
    assert not overread(requests)
