"""The words of the traffic: frozen values that say what is sent when, without sending it.

A request's messages are complete, as agents send them, but for the model's own answers: an
`Echo` stands for the answer to an earlier request of the same scenario, named by its label. A
client puts it back as its `Spelling` has it, with the calls that were really made; of a model or
server that made none, with scripted ones, since not every server can be asked for a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

CALL_TOKENS = 240
"""Enough for a call of the tools that `texts` writes, in bytes."""

Message: TypeAlias = Mapping[str, Any]


class Spelling(Enum):
    """How a client writes an answer when it sends it back."""

    AS_SENT = "as sent"
    REWRITTEN = "rewritten"  # text without outer white space; arguments compact, keys reversed


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, byte for byte as it was sent or is echoed."""

    id: str
    name: str
    arguments: str

    def message_part(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    def rewritten(self) -> ToolCall:
        try:
            parsed = json.loads(self.arguments)
        except ValueError:
            return self
        if not isinstance(parsed, dict):
            return self
        turned = dict(reversed(parsed.items()))
        return replace(self, arguments=json.dumps(turned, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw of a reply: its text, the thinking that was split off, and its calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """The assistant's message that answered the request `label`, as the client sends it back.

    `calls` and `thinking` are scripted. The calls stand in where the answer did not make as many
    itself; then what was sampled is taken for the calls in the model's own notation, of which
    the client sends nothing back.
    """

    label: str
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    spelling: Spelling = Spelling.AS_SENT

    def is_answer(self, answer: Answer) -> bool:
        """Whether what is sent back means `answer`, and nothing else."""
        return not self.thinking and len(answer.calls) == len(self.calls)

    def calls_of(self, answer: Answer) -> tuple[ToolCall, ...]:
        if len(answer.calls) != len(self.calls):
            return self.calls
        if self.spelling is Spelling.AS_SENT:
            return answer.calls
        return tuple(call.rewritten() for call in answer.calls)

    def message(self, answer: Answer) -> dict[str, Any]:
        said = answer if len(answer.calls) == len(self.calls) or not self.calls else Answer()
        text, thinking = said.text, said.thinking + self.thinking
        if self.spelling is Spelling.REWRITTEN:
            text = text.strip()
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["reasoning_content"] = thinking
        if calls := self.calls_of(answer):
            message["tool_calls"] = [call.message_part() for call in calls]
        return message


@dataclass(frozen=True, slots=True)
class Result:
    """What the call number `index` of an echo gave."""

    echo: Echo
    index: int
    text: str

    def message(self, answer: Answer) -> dict[str, Any]:
        call = self.echo.calls_of(answer)[self.index]
        return {"role": "tool", "tool_call_id": call.id, "content": self.text}


Part: TypeAlias = Message | Echo | Result


@dataclass(frozen=True, slots=True)
class Cancel:
    """When the client hangs up: after that many deltas, or with that share of the prompt read."""

    after_deltas: int | None = None
    at_share_read: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion. Labels are unique within a scenario.

    `must_call`: the answer has to be one tool call. Of a model of random weights: `blanks` are
    characters that it may mix into its answer, and with `thinks` it may think before a call.
    """

    label: str
    messages: tuple[Part, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int = 8
    cancel: Cancel | None = None
    must_call: bool = False
    blanks: str = ""
    thinks: bool = False

    @property
    def last_echo(self) -> Echo | None:
        """The answer that this request goes on from."""
        return next((part for part in reversed(self.messages) if isinstance(part, Echo)), None)

    def resolve(self, answers: Mapping[str, Answer]) -> list[dict[str, Any]]:
        """The messages as they go over the wire, each echo replaced by the answer it names."""
        return [_resolved(message, answers) for message in self.messages]


class Interruption(Enum):
    """What becomes of the server between two waves, while nobody asks it anything."""

    RESTART = "restart"  # told to stop, and started again
    UNLOAD = "unload"  # left alone until its model and what it read have left the memory
    SAVE = "save"  # left alone until nothing that it read would be lost with it
    KILL = "kill"  # killed while it writes what it read since, and started again


Wave: TypeAlias = tuple[Request, ...]
Step: TypeAlias = Wave | Interruption


@dataclass(frozen=True, slots=True)
class Scenario:
    """Waves of requests: those of a wave are sent at once, the next wave when all have ended and
    what stands between the two has happened."""

    name: str
    steps: tuple[Step, ...]

    @property
    def waves(self) -> tuple[Wave, ...]:
        return tuple(step for step in self.steps if not isinstance(step, Interruption))

    @property
    def requests(self) -> Wave:
        return tuple(request for wave in self.waves for request in wave)

    @property
    def is_interrupted(self) -> bool:
        return any(isinstance(step, Interruption) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A history that grows by values: each method gives a new one, so a fork is an assignment."""

    tools: tuple[Mapping[str, Any], ...] = ()
    messages: tuple[Part, ...] = ()

    def system(self, text: str) -> Conversation:
        return self._with({"role": "system", "content": text})

    def user(self, text: str) -> Conversation:
        return self._with({"role": "user", "content": text})

    def answered(
        self, label: str, thinking: str = "", spelling: Spelling = Spelling.AS_SENT
    ) -> Conversation:
        """The request `label` was answered with text, and the answer was kept."""
        return self._with(Echo(label, (), thinking, spelling))

    def worked(
        self,
        label: str,
        results: Mapping[str, str],
        thinking: str = "",
        spelling: Spelling = Spelling.AS_SENT,
    ) -> Conversation:
        """The answer to `label` called a tool for each path of `results` and got its text."""
        calls = tuple(
            ToolCall(f"call_{label}_{i}".replace(" ", "_"), "read_file", json.dumps({"path": path}))
            for i, path in enumerate(results)
        )
        echo = Echo(label, calls, thinking, spelling)
        given = (Result(echo, i, text) for i, text in enumerate(results.values()))
        return self._with(echo, *given)

    def request(self, label: str, max_tokens: int = 8, cancel: Cancel | None = None) -> Request:
        return Request(label, self.messages, self.tools, max_tokens, cancel)

    def call(self, label: str) -> Request:
        """A request that has to be answered with a call."""
        return Request(label, self.messages, self.tools, CALL_TOKENS, must_call=True)

    def _with(self, *parts: Part) -> Conversation:
        return replace(self, messages=(*self.messages, *parts))


def _resolved(part: Part, answers: Mapping[str, Answer]) -> dict[str, Any]:
    if isinstance(part, Echo):
        return part.message(answers[part.label])
    if isinstance(part, Result):
        return part.message(answers[part.echo.label])
    return dict(part)
