"""Anthropic's messages to ours. Pure.

One message of this API may hold what templates know as several: its tool results become messages
of their own, before the texts beside them, so that they stand next to their calls. All else keeps
its order and its place, so that a longer history renders to a longer prompt.

The text blocks of an assistant's message are pieces of one text, cut where a thought, a call or a
citation came between them; other blocks are lines. What a text model cannot read is named in its
place. `cache_control`, `citations` and unknown fields make no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from daemon.api.json_body import Body, Path, refuse, text_field
from daemon.api.rules import not_shown
from daemon.chat import Message, Part, TextPart, ToolCall, ToolSpec

Tools: TypeAlias = Mapping[str, ToolSpec]
"""The tools of a request by name, deferred ones included."""

ROLES = ("user", "assistant", "system", "developer")
UNSUPPORTED = "unsupported_content"
ERROR_MARK = TextPart("[error]")

ELSEWHERE = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "mcp_tool_listing",
        "browser_state",
        "container_upload",
        "fallback",
    }
)
"""Blocks of what a vendor's server did: nothing here can have written them, or go on from them."""


class MessageFields(Body):
    role: str
    content: Any = None


def system_message(system: Any) -> Message | None:
    """The text that opens the conversation: a string or blocks."""
    parts = _parts(system, ("system",), {})
    return Message("system", parts) if parts else None


def conversation_messages(message: MessageFields, path: Path, tools: Tools) -> Iterator[Message]:
    """What one message of the API comes to. `path` is where it stands in the body."""
    place = (*path, "content")
    match message.role:
        case "user":
            yield from _user_messages(message.content, place, tools)
        case "assistant":
            yield _assistant_message(message.content, place, tools)
        case "system" | "developer":
            yield Message("system", _parts(message.content, place, tools))
        case _:
            raise refuse((*path, "role"), f"has to be one of {', '.join(ROLES)}.")


def _user_messages(content: Any, path: Path, tools: Tools) -> Iterator[Message]:
    parts: list[Part] = []
    has_results = False
    for block, place in _blocks(content, path):
        if block["type"] == "tool_result":
            has_results = True
            yield _result(block, place, tools)
        else:
            parts += _block_parts(block, place, tools)
    if parts or not has_results:
        yield Message("user", tuple(parts))


def _result(block: Mapping[str, Any], path: Path, tools: Tools) -> Message:
    parts = _parts(block.get("content"), (*path, "content"), tools)
    if block.get("is_error") is True:
        parts = (ERROR_MARK, *parts)
    return Message("tool", parts, tool_call_id=text_field(block, "tool_use_id", path))


def _assistant_message(content: Any, path: Path, tools: Tools) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block, place in _blocks(content, path):
        match block["type"]:
            case "thinking":
                thoughts.append(text_field(block, "thinking", place))
            case "redacted_thinking":
                pass  # sealed: only the vendor who wrote it can read it
            case "tool_use":
                calls.append(_call(block, place))
            case _:
                texts += [part.text for part in _block_parts(block, place, tools)]
    text = "".join(texts)
    return Message(
        "assistant",
        (TextPart(text),) if text else (),
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _call(block: Mapping[str, Any], path: Path) -> ToolCall:
    arguments = block.get("input")
    if not isinstance(arguments, str | dict | None):
        raise refuse((*path, "input"), "has to be an object.")
    name = text_field(block, "name", path)
    return ToolCall(text_field(block, "id", path), name, {} if arguments is None else arguments)


def _parts(content: Any, path: Path, tools: Tools) -> tuple[Part, ...]:
    return tuple(
        part
        for block, place in _blocks(content, path)
        for part in _block_parts(block, place, tools)
    )


def _blocks(content: Any, path: Path) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """Content as blocks, each with its place: a string is one of text, null none."""
    if content is None:
        return
    if isinstance(content, str):
        yield {"type": "text", "text": content}, path
        return
    if not isinstance(content, list):
        raise refuse(path, "has to be a string or a list of blocks.")
    for index, block in enumerate(content):
        place = (*path, index)
        if isinstance(block, str):
            yield {"type": "text", "text": block}, place
        elif isinstance(block, dict) and isinstance(block.get("type"), str):
            yield block, place
        else:
            raise refuse(place, "has to be an object with a type.")


def _block_parts(block: Mapping[str, Any], path: Path, tools: Tools) -> tuple[Part, ...]:
    kind = block["type"]
    match kind:
        case "text":
            return _text(text_field(block, "text", path))
        case "image":
            return (TextPart(not_shown(kind)),)
        case "document":
            return _document(block, path, tools)
        case "search_result":
            return _search_result(block, path, tools)
        case "tool_reference":
            return (_referred_tool(text_field(block, "tool_name", path), tools),)
        case "compaction":
            return _text(block.get("content"))
    if kind in ELSEWHERE:
        return (TextPart(not_shown(kind)),)
    raise refuse(path, f"is a block of type {kind[:40]!r}, which has no place here.", UNSUPPORTED)


def _text(text: Any) -> tuple[Part, ...]:
    return (TextPart(text),) if isinstance(text, str) and text else ()


def _document(block: Mapping[str, Any], path: Path, tools: Tools) -> tuple[Part, ...]:
    """Its title and its text; a file in another format is only named."""
    source, place = block.get("source"), (*path, "source")
    shown: tuple[Part, ...] = (TextPart(not_shown("document")),)
    if isinstance(source, dict):
        if source.get("type") == "text":
            shown = _text(text_field(source, "data", place))
        elif source.get("type") == "content":
            shown = _parts(source.get("content"), (*place, "content"), tools)
    return (*_text(block.get("title")), *_text(block.get("context")), *shown)


def _search_result(block: Mapping[str, Any], path: Path, tools: Tools) -> tuple[Part, ...]:
    content = _parts(block.get("content"), (*path, "content"), tools)
    return (*_text(block.get("title")), *_text(block.get("source")), *content)


def _referred_tool(name: str, tools: Tools) -> Part:
    """A tool's definition where the conversation refers to it, as templates show the others."""
    tool = tools.get(name)
    if tool is None:
        return TextPart(f"[tool {name}: not among the tools of this request]")
    return TextPart(json.dumps(tool.for_template(), ensure_ascii=False))
