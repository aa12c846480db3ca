"""A client's messages in the form that a model's template takes.

Append-only: what a history becomes is a prefix of what the history and more become, so nothing
read before is read again. So every rule looks at a message and at what came before it, never at
what follows. (Two exceptions, where the template leaves no choice: a template that wants roles to
alternate gets neighbours of one role as one message, and a system message between a call and its
result moves behind the result.) What a template would drop or refuse goes in as marked text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mlx_backend.content import Content
from mlx_backend.errors import PromptRejected
from mlx_backend.traits import REASONING_FIELDS, Message, TemplateTraits

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


Origins: TypeAlias = tuple[tuple[int, int], ...]
"""Which of the client's messages a content consists of: their indices, and where each begins."""

_ORIGINS = "origins"  # a key of messages on their way through this module only
_SEPARATOR = "\n\n"


class Conversations:
    """Normalises messages for one template. Thread-safe."""

    def __init__(self, traits: TemplateTraits, content: Content) -> None:
        self._traits = traits
        self._content = content

    def normalise(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[Message]:
        """The messages for the template; `tools` come through `Content.tool` already."""
        return self.traced(messages, tools)[0]

    def traced(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[list[Message], list[Origins]]:
        """The same, and for each of them which of the client's messages are in its content."""
        if not messages:
            raise PromptRejected("There has to be at least one message.", "messages")
        read = [self._read(message, f"messages[{i}]") for i, message in enumerate(messages)]
        for index, message in enumerate(read):
            message[_ORIGINS] = ((index, 0),)
        read = self._arranged(read, tools)
        return read, [message.pop(_ORIGINS, ()) for message in read]

    def _arranged(self, read: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        read = self._with_head(read, tools)
        read = _results_beside_calls(read)
        if not self._traits.takes_several_calls:
            read = [part for message in read for part in _with_one_call(message)]
        read = [self._carried(message, is_first=i == 0) for i, message in enumerate(read)]
        if not self._traits.takes_repeated_roles:
            read = _merged(read)
        return read if self._traits.takes_user_after_tool else _with_answers(read)

    def _read(self, message: Mapping[str, Any], field: str) -> Message:
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            raise PromptRejected("The role is none of " + ", ".join(_ROLES) + ".", f"{field}.role")
        if role == "assistant":
            return self._read_assistant(message, field)
        read: Message = {"role": role}
        read["content"] = self._content.text(message.get("content"), f"{field}.content")
        if message.get("name"):
            read["name"] = self._content.text(message["name"], f"{field}.name")
        if role == "tool":
            read["tool_call_id"] = self._call_id(message.get("tool_call_id"), field)
        return read

    def _read_assistant(self, message: Mapping[str, Any], field: str) -> Message:
        content = message.get("content")
        read: Message = {"role": "assistant"}
        said = next((name for name in REASONING_FIELDS if message.get(name)), None)
        reasoning = None
        if said is not None:
            reasoning = self._content.text(message[said], f"{field}.{said}")
        elif isinstance(content, str) and (split := self._split_thinking(content)) is not None:
            thought, content = split
            reasoning = self._content.text(thought, f"{field}.content")
            if not self._traits.reasoning_fields:
                return self._with_tags(read, reasoning, content, message, field)
        read["content"] = self._content.text(content, f"{field}.content")
        if reasoning:
            if message.get("tool_calls") and not self._traits.takes_text_with_thought_and_calls:
                reasoning = f"{reasoning}\n\n{read['content']}".rstrip("\n")
                read["content"] = ""
            read.update(dict.fromkeys(self._traits.reasoning_fields, reasoning))
        return self._with_calls(read, message, field)

    def _with_tags(
        self, read: Message, thought: str, content: str, message: Mapping[str, Any], field: str
    ) -> Message:
        """For templates that look for think tags in the content: the tags as they are."""
        assert self._traits.think_tags is not None
        opened, closed = self._traits.think_tags
        rest = self._content.text(content, f"{field}.content")
        read["content"] = f"{opened}\n{thought}\n{closed}\n\n{rest}"
        return self._with_calls(read, message, field)

    def _split_thinking(self, content: str) -> tuple[str, str] | None:
        """Thought and answer, if the text begins inside or with a think block."""
        if self._traits.think_tags is None:
            return None
        opened, closed = self._traits.think_tags
        begun = content.lstrip()
        if begun.startswith(opened):
            thought, _, answer = begun[len(opened) :].partition(closed)
        elif self._traits.opens_thinking and closed in content:
            thought, _, answer = content.partition(closed)
        else:
            return None
        return thought.strip("\n"), answer.lstrip("\n")

    def _with_calls(self, read: Message, message: Mapping[str, Any], field: str) -> Message:
        calls = message.get("tool_calls") or ()
        if calls:
            read["tool_calls"] = [
                self._read_call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)
            ]
        return read

    def _read_call(self, call: Mapping[str, Any], field: str) -> Message:
        function = call.get("function") or call
        name = self._content.text(function.get("name"), f"{field}.function.name")
        place = f"{field}.function.arguments"
        arguments = self._content.arguments(function.get("arguments"), place)
        if isinstance(arguments, str) and not self._traits.takes_argument_text:
            arguments = {"arguments": arguments}
        if isinstance(arguments, dict) and not self._traits.takes_argument_mapping:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {
            "id": self._call_id(call.get("id"), field),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _call_id(self, value: object, field: str) -> str:
        text = self._content.text(value, f"{field}.id")
        if self._traits.wants_short_call_ids:
            return hashlib.sha256(text.encode("utf-8")).hexdigest()[:9]
        return text

    def _with_head(self, read: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The leading system messages as one, with the tools if the template leaves them out."""
        count = next((i for i, m in enumerate(read) if m["role"] != "system"), len(read))
        texts = [message["content"] for message in read[:count]]
        origins = _joined([(message[_ORIGINS], message["content"]) for message in read[:count]])
        if tools and not self._traits.shows_tools:
            texts.append(self._tools_as_text(tools))
        if not texts:
            return read
        text, rest = _SEPARATOR.join(texts), read[count:]
        if self._traits.takes_system:
            return [{"role": "system", "content": text, _ORIGINS: origins}, *rest]
        if rest and rest[0]["role"] == "user":
            content = f"{text}\n\n{rest[0]['content']}"
            origins = _joined([(origins, text), (rest[0][_ORIGINS], rest[0]["content"])])
            return [{**rest[0], "content": content, _ORIGINS: origins}, *rest[1:]]
        return [{"role": "user", "content": text, _ORIGINS: origins}, *rest]

    def _tools_as_text(self, tools: Sequence[Mapping[str, Any]]) -> str:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        form = self._block("tool_call", '{"name": <name>, "arguments": <arguments>}')
        return (
            f"# Tools\n\nYou may call these functions:\n{self._block('tools', listed)}\n\n"
            f"To call one, answer with\n{form}"
        )

    def _carried(self, message: Message, *, is_first: bool) -> Message:
        """The message as it is, or as text in a role that the template takes."""
        role = message["role"]
        if role == "system" and not is_first and not self._traits.takes_late_system:
            return self._as_user_block(message, "system")
        if role == "tool" and not self._traits.takes_tool_role:
            return self._as_user_block(message, "tool_response")
        if "tool_calls" in message and not self._traits.shows_tool_calls:
            return self._calls_as_text(message)
        return message

    def _as_user_block(self, message: Message, tag: str) -> Message:
        content = self._block(tag, message["content"])
        return {"role": "user", "content": content, _ORIGINS: message[_ORIGINS]}

    def _calls_as_text(self, message: Message) -> Message:
        calls = [
            self._block("tool_call", json.dumps(call["function"], ensure_ascii=False))
            for call in message["tool_calls"]
        ]
        texts = [message["content"], *calls] if message["content"] else calls
        kept = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**kept, "content": "\n".join(texts)}

    def _block(self, tag: str, text: str) -> str:
        opened, closed = (self._content.text(mark, "") for mark in (f"<{tag}>", f"</{tag}>"))
        return f"{opened}\n{text}\n{closed}"


def _joined(parts: Sequence[tuple[Origins, str]]) -> Origins:
    """The origins of texts that are joined to one."""
    joined: list[tuple[int, int]] = []
    length = 0
    for origins, text in parts:
        joined += [(index, length + offset) for index, offset in origins]
        length += len(text) + len(_SEPARATOR) if text else 0
    return tuple(joined)


def _results_beside_calls(messages: list[Message]) -> list[Message]:
    """System messages between a call and its results moved behind the results."""
    placed: list[Message] = []
    waiting: list[Message] = []
    open_calls = 0
    for message in messages:
        if message["role"] == "tool":
            open_calls -= 1
        elif message["role"] == "system" and open_calls > 0:
            waiting.append(message)
            continue
        else:
            placed += waiting
            waiting = []
            open_calls = len(message.get("tool_calls", ()))
        placed.append(message)
        if open_calls <= 0:
            placed += waiting
            waiting = []
    return placed + waiting


def _with_one_call(message: Message) -> list[Message]:
    """A message of several calls as one for each; the first has all else."""
    first, *others = message.get("tool_calls", ()) or [None]
    if not others:
        return [message]
    more = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in others]
    return [{**message, "tool_calls": [first]}, *more]


def _with_answers(messages: Sequence[Message]) -> list[Message]:
    """A short answer between a tool's result and a user message that follows it."""
    answered: list[Message] = []
    for message in messages:
        if answered and message["role"] == "user" and answered[-1]["role"] == "tool":
            answered.append({"role": "assistant", "content": "Understood."})
        answered.append(message)
    return answered


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role as one message, for templates that want roles to alternate."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last["role"] != message["role"] or last["role"] == "tool":
            merged.append(message)
            continue
        texts = [text for text in (last["content"], message["content"]) if text]
        origins = _joined([(each[_ORIGINS], each["content"]) for each in (last, message)])
        merged[-1] = {**last, **message, "content": _SEPARATOR.join(texts), _ORIGINS: origins}
        if calls := [*last.get("tool_calls", ()), *message.get("tool_calls", ())]:
            merged[-1]["tool_calls"] = calls
    return merged
