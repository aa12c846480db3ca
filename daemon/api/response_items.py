"""The input items of a Responses request to messages. Pure.

One answer comes back as several items: its reasoning, its text, its calls. Neighbours like that
are one assistant message, as the model wrote it; everything else is a message in its own place, so
that a longer list renders to a longer prompt. The ids of items, their status and unknown fields
make no difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from daemon.api.json_body import Path, field_name, refuse, text_field
from daemon.api.openai_parts import parts_of
from daemon.api.response_thoughts import thought_of
from daemon.api.response_tools import Tools
from daemon.chat import PART_SEPARATOR, Message, Part, TextPart, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_NAMED_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_CALL_OF_OUTPUT = ("call_id", "id")
_BRING_TOOLS = ("tool_search_output", "additional_tools")

Recall = Callable[[str], Mapping[str, Any]]
"""A kept item by its id. Raises NotFound."""


@dataclass(slots=True)
class _Turn:
    """An assistant's message in the making."""

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    ends_with_text: bool = False

    def message(self) -> Message:
        text = "".join(self.texts)
        return Message(
            role="assistant",
            parts=(TextPart(text),) if text else (),
            reasoning="".join(self.thoughts) or None,
            tool_calls=tuple(self.calls),
        )


class ItemReader:
    """Reads items in their order.

    `tools` are those of the request, and then those that items bring. `ignored` are the places of
    items that say nothing here.
    """

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self.ignored: list[str] = []

    def read(self, item: Mapping[str, Any], path: Path) -> None:
        """`item` is no reference. Raises BadRequest, which names the field."""
        kind = _kind(item, path)
        if kind == "message":
            self._read_message(item, path)
        elif kind == "reasoning":
            self._read_reasoning(item, path)
        elif kind in _NAMED_CALLS:
            self._add_call(self._named_call(kind, item, path))
        elif kind in _BRING_TOOLS:
            self._read_tools(item, path)
        elif kind.endswith("_call_output"):
            self._add(_output(item, path))
        elif kind.endswith("_call") and text_field(item, "call_id", path, ""):
            self._add_call(_built_in_call(kind, item, path))
        elif isinstance(item.get("content"), str | list):  # as messages between agents are
            self._add(Message("user", parts_of(item["content"], (*path, "content"))))
        else:
            self.ignored.append(f"{field_name(path)} ({kind[:40]})")

    def messages(self) -> tuple[Message, ...]:
        self._close_turn()
        return tuple(self._messages)

    def _read_message(self, item: Mapping[str, Any], path: Path) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise refuse((*path, "role"), f"has to be one of {', '.join(ROLES)}.")
        parts = parts_of(item.get("content"), (*path, "content"))
        if role != "assistant":
            return self._add(Message(ROLES[role], parts))
        if self._turn is not None and self._turn.ends_with_text:
            self._close_turn()  # no answer says two texts in a row
        turn = self._open_turn()
        turn.texts.append(_joined(parts))
        turn.ends_with_text = True
        return None

    def _read_reasoning(self, item: Mapping[str, Any], path: Path) -> None:
        turn = self._open_turn()
        turn.thoughts.append(thought_of(item, path))
        turn.ends_with_text = False

    def _read_tools(self, item: Mapping[str, Any], path: Path) -> None:
        """Tools are shown where they are brought; a search that found them has its result there."""
        place = (*path, "tools")
        given = item.get("tools")
        if not isinstance(given, list):
            raise refuse(place, "has to be a list of tools.")
        self.tools, brought = self.tools.with_more(given, place)
        shown = (json.dumps(spec.for_template(), ensure_ascii=False) for spec in brought)
        parts = tuple(TextPart(text) for text in shown)
        call_id = text_field(item, "call_id", path, "")
        if call_id:
            self._add(Message("tool", parts, tool_call_id=call_id))
        else:
            self._add(Message("system", parts))

    def _named_call(self, kind: str, item: Mapping[str, Any], path: Path) -> ToolCall:
        name = text_field(item, "name", path)
        namespace = text_field(item, "namespace", path, "") or None
        said: Any = item.get(_NAMED_CALLS[kind])
        if kind == "custom_tool_call":
            said = {"input": text_field(item, "input", path, "")}
        elif not isinstance(said, str | dict | None):
            raise refuse((*path, "arguments"), "has to be a string.")
        seen = self.tools.seen_name(name, namespace)
        return ToolCall(text_field(item, "call_id", path, ""), seen, "" if said is None else said)

    def _add_call(self, call: ToolCall) -> None:
        turn = self._open_turn()
        turn.calls.append(call)
        turn.ends_with_text = False

    def _open_turn(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _add(self, message: Message) -> None:
        self._close_turn()
        self._messages.append(message)

    def _close_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None


def input_items(given: Any, recall: Recall) -> list[tuple[Path, dict[str, Any]]]:
    """The items of `input` with their places: a text is one of the user, references are resolved.

    Raises NotFound for a reference to what is not kept.
    """
    if isinstance(given, str):
        return [(("input",), {"type": "message", "role": "user", "content": given})]
    if not isinstance(given, list):
        raise refuse(("input",), "has to be a string or a list of items.")
    return [_resolved(item, ("input", index), recall) for index, item in enumerate(given)]


def _resolved(item: Any, path: Path, recall: Recall) -> tuple[Path, dict[str, Any]]:
    if not isinstance(item, dict):
        raise refuse(path, "has to be an object.")
    is_bare = item.get("type") is None and "role" not in item and "id" in item
    if item.get("type") == "item_reference" or is_bare:
        item = dict(recall(text_field(item, "id", path)))
    return path, item


def _kind(item: Mapping[str, Any], path: Path) -> str:
    kind = item.get("type")
    if kind is None and "role" in item:
        return "message"
    if not isinstance(kind, str):
        raise refuse((*path, "type"), "has to be a string.")
    return kind


def _output(item: Mapping[str, Any], path: Path) -> Message:
    """What a call gave. Old shell outputs name their call by their own id."""
    ids: Iterable[str] = (text_field(item, name, path, "") for name in _CALL_OF_OUTPUT)
    call_id = next((found for found in ids if found), "")
    output = item.get("output")
    if isinstance(output, list):
        output = [_shell_text(part) for part in output]
    return Message("tool", parts_of(output, (*path, "output")), tool_call_id=call_id)


def _shell_text(part: Any) -> Any:
    """A shell's output is no part, but holds what was written; any other is as it was."""
    if not isinstance(part, dict) or "type" in part:
        return part
    written = [part.get("stdout"), part.get("stderr")]
    return PART_SEPARATOR.join(text for text in written if isinstance(text, str) and text)


def _built_in_call(kind: str, item: Mapping[str, Any], path: Path) -> ToolCall:
    """A call of a tool that the client's vendor defines: by its kind, with what it was to do."""
    told = ("action", "operation", "arguments")
    said: Any = next((item[name] for name in told if isinstance(item.get(name), str | dict)), {})
    return ToolCall(text_field(item, "call_id", path), kind.removesuffix("_call"), said)


def _joined(parts: tuple[Part, ...]) -> str:
    return PART_SEPARATOR.join(part.text for part in parts)
