"""The words of the traffic: frozen values that say what is sent when, without sending it.

A request's messages are complete, as agents send them, but for the model's own answers: an
`Echo` stands for the answer to an earlier request of the same scenario, named by its label. A
client puts it back with what a real agent would have found in it (tool calls, thinking), which
is scripted here, since the models of a benchmark need not be able to call tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, byte for byte as it is echoed."""

    id: str
    name: str
    arguments: str

    def message_part(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Echo:
    """The assistant's message that answered the request `label`, as the client sends it back.

    With `calls`, what was sampled stands for the calls in the model's own notation: the client
    has parsed them and sends them back in its own, so those tokens do not come again.
    """

    label: str
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw of a reply: its text, and the thinking that was split off."""

    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """When the client hangs up: after that many deltas, or with that share of the prompt read."""

    after_deltas: int | None = None
    at_share_read: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion. Labels are unique within a scenario."""

    label: str
    messages: tuple[Message | Echo, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int = 8
    cancel: Cancel | None = None

    def resolve(self, answers: Mapping[str, Answer]) -> list[dict[str, Any]]:
        """The messages as they go over the wire, each echo replaced by the answer it names."""
        return [_resolved(message, answers) for message in self.messages]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Waves of requests: those of a wave are sent at once, the next wave when all have ended."""

    name: str
    waves: tuple[tuple[Request, ...], ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(request for wave in self.waves for request in wave)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A history that grows by values: each method gives a new one, so a fork is an assignment."""

    tools: tuple[Mapping[str, Any], ...] = ()
    messages: tuple[Message | Echo, ...] = ()

    def system(self, text: str) -> Conversation:
        return self._with({"role": "system", "content": text})

    def user(self, text: str) -> Conversation:
        return self._with({"role": "user", "content": text})

    def answered(self, label: str, thinking: str = "") -> Conversation:
        """The request `label` was answered with text, and the answer was kept."""
        return self._with(Echo(label, thinking=thinking))

    def worked(self, label: str, results: Mapping[str, str], thinking: str = "") -> Conversation:
        """The answer to `label` called a tool for each path of `results` and got its text."""
        calls = tuple(
            ToolCall(f"call_{label}_{i}".replace(" ", "_"), "read_file", json.dumps({"path": path}))
            for i, path in enumerate(results)
        )
        grown = self._with(Echo(label, calls, thinking))
        for call, text in zip(calls, results.values(), strict=True):
            grown = grown._with({"role": "tool", "tool_call_id": call.id, "content": text})
        return grown

    def request(self, label: str, max_tokens: int = 8, cancel: Cancel | None = None) -> Request:
        return Request(label, self.messages, self.tools, max_tokens, cancel)

    def _with(self, message: Message | Echo) -> Conversation:
        return replace(self, messages=(*self.messages, message))


def _resolved(message: Message | Echo, answers: Mapping[str, Answer]) -> dict[str, Any]:
    if not isinstance(message, Echo):
        return dict(message)
    answer = Answer() if message.calls else answers[message.label]
    resolved: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if thinking := answer.thinking + message.thinking:
        resolved["reasoning_content"] = thinking
    if message.calls:
        resolved["tool_calls"] = [call.message_part() for call in message.calls]
    return resolved
