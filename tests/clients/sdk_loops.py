"""Loops with a tool, as a program writes them with the client libraries of OpenAI and Anthropic."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
    "additionalProperties": False,
}
HEARD_ENOUGH = 100
"""Characters of an answer after which it is left."""


@dataclass(frozen=True)
class Asked:
    """A call of the tool."""

    id: str
    arguments: Mapping[str, str]


class Loop(ABC):
    """One conversation with one API. `files` is what its tool wrote."""

    path: str

    def __init__(self, base_url: str, max_tokens: int = 4000) -> None:
        self.files: dict[str, str] = {}
        self._base_url = base_url
        self._max_tokens = max_tokens
        self._history: list[Any] = []
        self._client = self._connected()

    def renew(self) -> None:
        """Go on with a new client, as a new process would."""
        self.close()
        self._client = self._connected()

    def close(self) -> None:
        self._client.close()

    def turn(self, text: str) -> str:
        """Say `text`, run the calls, and return the final words."""
        self._history.append({"role": "user", "content": text})
        while True:
            said, calls = self._answer()
            if not calls:
                return said
            for call in calls:
                self.files[call.arguments["path"]] = call.arguments["content"]
            self._report(calls)

    def cut(self, text: str) -> str:
        """Say `text`, leave in the middle of the answer, and keep what was heard of it."""
        self._history.append({"role": "user", "content": text})
        heard = ""
        for piece in self._pieces():
            heard += piece
            if len(heard) > HEARD_ENOUGH:
                break
        self._history.append({"role": "assistant", "content": heard})
        return heard

    @property
    def about(self) -> str:
        """What the tool does. Different with each API, so that none finds what another has read."""
        return f"{self.path}: write a file to the disk. " + "Mind what is there already. " * 20

    @abstractmethod
    def _connected(self) -> Any:
        """A new client of the library."""

    @abstractmethod
    def _answer(self) -> tuple[str, list[Asked]]:
        """The answer to the history, which goes into the history."""

    @abstractmethod
    def _pieces(self) -> Iterator[str]:
        """The answer's text as it comes; who stops to listen closes the stream."""

    @abstractmethod
    def _report(self, calls: list[Asked]) -> None:
        """Put the results of the calls into the history."""


class ChatLoop(Loop):
    path = "/v1/chat/completions"

    def _connected(self) -> Any:
        return openai.OpenAI(base_url=f"{self._base_url}/v1", api_key="none")

    def _answer(self) -> tuple[str, list[Asked]]:
        with self._stream() as stream:
            for _ in stream:
                pass
            message = stream.current_completion_snapshot.choices[0].message
        self._history.append(message.to_dict())
        calls = message.tool_calls or ()
        asked = [Asked(call.id, json.loads(call.function.arguments)) for call in calls]
        return message.content or "", asked

    def _pieces(self) -> Iterator[str]:
        with self._stream() as stream:
            yield from (event.delta for event in stream if event.type == "content.delta")

    def _report(self, calls: list[Asked]) -> None:
        for call in calls:
            told = {"role": "tool", "tool_call_id": call.id, "content": "Done."}
            self._history.append(told)

    def _stream(self) -> Any:
        function = {"name": "write_file", "description": self.about, "parameters": SCHEMA}
        return self._client.chat.completions.stream(
            model="default",
            messages=self._history,
            tools=[{"type": "function", "function": function}],
            max_completion_tokens=self._max_tokens,
            stream_options={"include_usage": True},
        )


class ResponsesLoop(Loop):
    path = "/v1/responses"

    def _connected(self) -> Any:
        return openai.OpenAI(base_url=f"{self._base_url}/v1", api_key="none")

    def _answer(self) -> tuple[str, list[Asked]]:
        with self._stream() as stream:
            for event in stream:
                if event.type in ("response.completed", "response.incomplete"):
                    response = event.response
        self._history += [item.to_dict(exclude_none=True) for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        asked = [Asked(call.call_id, json.loads(call.arguments)) for call in calls]
        return response.output_text, asked

    def _pieces(self) -> Iterator[str]:
        with self._stream() as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    yield event.delta

    def _report(self, calls: list[Asked]) -> None:
        for call in calls:
            told = {"type": "function_call_output", "call_id": call.id, "output": "Done."}
            self._history.append(told)

    def _stream(self) -> Any:
        tool = {"type": "function", "name": "write_file", "description": self.about}
        return self._client.responses.stream(
            model="default",
            input=self._history,
            tools=[{**tool, "parameters": SCHEMA, "strict": True}],
            max_output_tokens=self._max_tokens,
            store=False,
        )


class MessagesLoop(Loop):
    path = "/v1/messages"

    def _connected(self) -> Any:
        return anthropic.Anthropic(base_url=self._base_url, api_key="none")

    def _answer(self) -> tuple[str, list[Asked]]:
        with self._stream() as stream:
            message = stream.get_final_message()
        self._history.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        said = "".join(block.text for block in message.content if block.type == "text")
        return said, [Asked(call.id, call.input) for call in calls]

    def _pieces(self) -> Iterator[str]:
        with self._stream() as stream:
            yield from stream.text_stream

    def _report(self, calls: list[Asked]) -> None:
        told = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "Done."} for call in calls
        ]
        self._history.append({"role": "user", "content": told})

    def _stream(self) -> Any:
        return self._client.messages.stream(
            model="default",
            max_tokens=self._max_tokens,
            messages=self._history,
            tools=[{"name": "write_file", "description": self.about, "input_schema": SCHEMA}],
        )


LOOPS = (ChatLoop, ResponsesLoop, MessagesLoop)
