"""Where a rendered prompt has its joints: found by comparing token ids, never by what is assumed
of a model.

Head: the prompt's common ids with two renderings of its system text and tools alone. Stable end:
its common ids with renderings of the same conversation gone on. Since the history would have to
be rendered again for each of them, the joints behind the last message are learned from a short
conversation of the same shape and checked against the prompt's own last ids; only where they do
not fit, or reach back into the history, is the whole rendered again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mlx_backend.encoded import common_length
from mlx_backend.errors import PromptRejected
from mlx_backend.memo import Memo
from mlx_backend.messages import Marks, TokenIds
from mlx_backend.recall import Told
from mlx_backend.templates import Template
from mlx_backend.traits import Message, TemplateTraits, probe_tool

_MEMO_BYTES = 16 << 20
_MEMO_ENTRIES = 4096
PROBE_USERS = ("Hello", "uno")


@dataclass(frozen=True)
class Rendering:
    """One request on its way through the template: everything but the messages. `answers` are the
    remembered ones among them."""

    tools: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    now: datetime
    key: Hashable = field(compare=False)  # equal for equal tools and options
    answers: Sequence[Told] = ()


@dataclass(frozen=True, slots=True)
class Head:
    """What a conversation opens with. `examples` gives two that have nothing else in common; equal
    `key`s mean equal examples."""

    key: Hashable
    examples: Callable[[], Sequence[Sequence[Message]]]


@dataclass(frozen=True, slots=True)
class Joints:
    """Offsets from a prompt's end: its generation tail, what of it does not stay, and whether
    the next user message changes what stands before."""

    tail: int
    unstable: int
    turns_back: bool
    tail_ids: tuple[int, ...] = ()


class MarkFinder:
    """Finds the marks of prompts of one template. Thread-safe."""

    def __init__(
        self,
        template: Template,
        traits: TemplateTraits,
        encode: Callable[[str, Sequence[Told]], TokenIds],
    ) -> None:
        self._template = template
        self._traits = traits
        self._encode = encode
        self._heads: Memo[Hashable, TokenIds] = Memo(_MEMO_BYTES, lambda key, ids: ids.nbytes)
        self._joints: Memo[Hashable, Joints] = Memo(_MEMO_ENTRIES)
        self._turns: Memo[Hashable, int] = Memo(_MEMO_ENTRIES)

    def ids(
        self, messages: Sequence[Message], rendering: Rendering, *, generation: bool
    ) -> TokenIds:
        """Render and encode. Raises PromptRejected."""
        rendered = self.render(messages, rendering, generation=generation)
        return self._encode(rendered, rendering.answers)

    def render(self, messages: Sequence[Message], rendering: Rendering, *, generation: bool) -> str:
        """Raises PromptRejected."""
        return self._template.render(
            messages, rendering.tools, rendering.options, rendering.now, generation=generation
        )

    def pieces(
        self, messages: Sequence[Message], rendering: Rendering, *, generation: bool
    ) -> Iterator[str]:
        """What `render` gives, as the template writes it."""
        return self._template.pieces(
            messages, rendering.tools, rendering.options, rendering.now, generation=generation
        )

    def marks(
        self,
        ids: TokenIds,
        messages: Sequence[Message],
        head: Head,
        rendering: Rendering,
    ) -> Marks:
        """The marks of the prompt `ids`, rendered from `messages`, which open with `head`."""
        joints = self._joints_of(ids, messages, rendering)
        stable_end = len(ids) - joints.unstable
        last_user_end = min(len(ids) - joints.tail, stable_end)
        if joints.turns_back:
            last_user_end = self._turning_point(ids, messages, rendering)
        return Marks(
            head_end=self._head_end(ids, head, rendering),
            last_user_end=last_user_end,
            stable_end=stable_end,
        )

    def _head_end(self, ids: TokenIds, head: Head, rendering: Rendering) -> int:
        key = (rendering.key, head.key)
        found = self._heads.get(key)
        if found is None:
            try:
                one, other = (self.ids(m, rendering, generation=True) for m in head.examples())
            except PromptRejected:
                return 0
            found = one[: common_length(one, other)]
            self._heads.put(key, found)
        return common_length(ids, found)

    def _joints_of(
        self, ids: TokenIds, messages: Sequence[Message], rendering: Rendering
    ) -> Joints:
        short = _short_form(messages)
        key = (rendering.key, _signature(short))
        joints = self._joints.get(key)
        if joints is None:
            tools = [probe_tool()] if rendering.tools else []
            likewise = Rendering(tools, rendering.options, rendering.now, rendering.key)
            joints = self._compare(short, likewise)
            self._joints.put(key, joints)
        last_ids = tuple(ids[len(ids) - joints.tail :].tolist())
        if joints.unstable <= joints.tail and last_ids == joints.tail_ids:
            return joints
        return self._compare(messages, rendering)

    def _compare(self, messages: Sequence[Message], rendering: Rendering) -> Joints:
        """The joints by rendering the conversation as it is, and gone on in each way."""
        try:
            prompt = self.ids(messages, rendering, generation=True)
            closed = self.ids(messages, rendering, generation=False)
        except PromptRejected:
            return Joints(0, 0, False)
        tail = len(prompt) - common_length(prompt, closed)
        by_user = self._common(prompt, [*messages, *_REPLY_AND_USER], rendering)
        loop = [message for message in _unanswered(messages) if "tool_calls" in message]
        by_tool = self._by_tool(prompt, messages, loop, rendering)
        in_loop = bool(loop)
        ways = by_tool if in_loop and by_tool else [by_user, *by_tool]
        stable = min((way for way in ways if way is not None), default=len(prompt) - tail)
        turns_back = in_loop and by_user is not None and by_user < len(prompt) - tail
        tail_ids = tuple(prompt[len(prompt) - tail :].tolist())
        return Joints(tail, len(prompt) - stable, turns_back, tail_ids)

    def _by_tool(
        self,
        prompt: TokenIds,
        messages: Sequence[Message],
        loop: Sequence[Message],
        rendering: Rendering,
    ) -> list[int]:
        """How much of the prompt stays when a call and its result follow, with and without a
        thought where calls had thoughts."""
        call, result = _CALL_AND_RESULT
        calls = [call, {**call, **_short_thought(loop)}] if _short_thought(loop) else [call]
        found = (self._common(prompt, [*messages, call, result], rendering) for call in calls)
        return [way for way in found if way is not None]

    def _common(
        self, prompt: TokenIds, messages: Sequence[Message], rendering: Rendering
    ) -> int | None:
        """How much of the prompt stays; None if the template refuses to go on this way."""
        if "tool_calls" in messages[-2] and not self._traits.shows_tool_calls:
            return None
        try:
            return common_length(prompt, self.ids(messages, rendering, generation=False))
        except PromptRejected:
            return None

    def _turning_point(
        self, ids: TokenIds, messages: Sequence[Message], rendering: Rendering
    ) -> int:
        """Where the prompt after the next user message leaves this one: the same all through a
        tool loop, so it is found once."""
        user = _last_user(messages)
        first = len(messages) - len(_unanswered(messages))
        thought = next((i for i in range(first, len(messages)) if _thinks(messages[i])), user)
        key = (rendering.key, user, thought, _signature(messages[: max(user, thought) + 1]))
        point = self._turns.get(key)
        if point is None:
            found = self._common(ids, [*messages, *_REPLY_AND_USER], rendering)
            point = len(ids) if found is None else found
            self._turns.put(key, point)
        return min(point, len(ids))


_REPLY_AND_USER: tuple[Message, ...] = (
    {"role": "assistant", "content": "Certainly"},
    {"role": "user", "content": "And then?"},
)
_CALL: Message = {
    "id": "a1b2c3d4e",
    "type": "function",
    "function": {"name": "attrezzo", "arguments": {"chiave": "valore"}},
}
_CALL_AND_RESULT: tuple[Message, ...] = (
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "risultato", "tool_call_id": "a1b2c3d4e", "name": "attrezzo"},
)


def _short_form(messages: Sequence[Message]) -> list[Message]:
    """A conversation of a few words that opens and ends as `messages` do."""
    roles = [message["role"] for message in messages]
    short: list[Message] = []
    if roles[0] == "system":
        short.append({"role": "system", "content": "Hello"})
    if len(roles) > 1 or roles[-1] != "system":
        short.append({"role": "user", "content": "Hello"})
    loop = [message for message in _unanswered(messages) if "tool_calls" in message]
    if loop:
        call, result = _CALL_AND_RESULT
        short += [{**call, **_short_thought(loop)}, result]
    if len(roles) > 1 and roles[-1] not in (("tool",) if loop else ("user", "tool")):
        short.append({"role": roles[-1], "content": "Hello"})
    return short


def _short_thought(loop: Sequence[Message]) -> Message:
    """The fields of a thought, if one of the calls has one."""
    thinking = next((message for message in loop if _thinks(message)), {})
    return {name: "Hello" for name in thinking if name in _REASONING}


def _unanswered(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages behind the last answer, leaving a last message out of account."""
    answers = (
        i
        for i in range(len(messages) - 2, -1, -1)
        if messages[i]["role"] == "assistant" and "tool_calls" not in messages[i]
    )
    return messages[next(answers, -1) + 1 :]


_REASONING = frozenset({"reasoning_content", "thinking", "reasoning"})


def _thinks(message: Message) -> bool:
    return not _REASONING.isdisjoint(message)


def _last_user(messages: Sequence[Message]) -> int:
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "user"), -1)


def _signature(messages: Sequence[Message]) -> Hashable:
    """A key for a stretch of messages. A collision costs a mark, never an answer."""
    return hash(tuple(_message_signature(message) for message in messages))


def _message_signature(message: Message) -> Hashable:
    calls = json.dumps(message["tool_calls"]) if "tool_calls" in message else ""
    thought = next((message[name] for name in _REASONING if name in message), "")
    return message["role"], message["content"], calls, thought
