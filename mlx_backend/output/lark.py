"""Pieces of the Lark grammars in which formats say how their calls are written.

`CallFormat.grammar` puts one together, with `start` as its first rule. The names of all other
rules are its own: each grammar is read apart from what it is put into. llguidance reads Lark with
additions of its own: `%json` for a schema, `name[suffix="…"]` for text up to and with an end.

Schemas of arguments are enforced as far as llguidance can; what it cannot is left to the tool,
which has to check its arguments anyway.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import Spelling
from mlx_backend.output.tape import MARK

WHITE_SPACE = r" ?|\n[ \t]{0,40}"
"""Between the parts of JSON: a blank, or a line break and an indentation; never an endless run."""

LINE_BREAK = r"/\n?/"
"""One or none."""

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def literal(text: str) -> str:
    """`text`, never empty, to be written as it is."""
    return json.dumps(text, ensure_ascii=False)


def mark(spelled: str) -> str:
    """A mark as a `Spelling` gives it: that one token, or else its characters."""
    is_token = spelled.startswith(MARK)
    return MARK + literal(spelled.removeprefix(MARK)) if is_token else literal(spelled)


def first_token(text: str, tokens: Collection[str]) -> str:
    """The token whose mark stands first on the tape `text`; "" if its characters count."""
    spelled = text.removeprefix(MARK)
    found = [token for token in tokens if spelled.startswith(token)] if text != spelled else []
    return max(found, key=len, default="")


def tape_text(text: str, tokens: Collection[str]) -> str:
    """Text as it stands on the tape: marks as their tokens, all else as its characters."""
    first, *marked = text.split(MARK)
    parts = [literal(first)] if first else []
    for part in marked:
        token = first_token(MARK + part, tokens)
        rest = part.removeprefix(token)
        parts += [MARK + literal(token), *([literal(rest)] if rest else [])]
    return " ".join(parts)


def json_value(schema: Mapping[str, Any] | None) -> str:
    """JSON that `schema` describes, as the right side of a rule of its own; None: any object."""
    root = dict(ANY_OBJECT if schema is None else schema)
    root["x-guidance"] = {"whitespace_pattern": WHITE_SPACE, "lenient": True}
    return f"%json {json.dumps(root, ensure_ascii=False)}"


def calls(call: str, between: str, may_repeat: bool) -> str:
    """The rule `start`: one call, or several with `between` between them."""
    return f"start: {call} ({between} {call})*" if may_repeat else f"start: {call}"


def choice(alternatives: Iterable[str]) -> str:
    return " | ".join(alternatives)


def hermes_json(spelled: Spelling, tools: Sequence[CallableTool], may_repeat: bool) -> str:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""
    opening, closing = mark(spelled("<tool_call>")), mark(spelled("</tool_call>"))
    rules = [
        calls("call", LINE_BREAK, may_repeat),
        f"call: {opening} {LINE_BREAK} body {LINE_BREAK} {closing}",
        f"body: {choice(f'body_{i}' for i in range(len(tools)))}",
    ]
    for i, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        rules += [
            f"body_{i}: {literal(head)} arguments_{i} {literal('}')}",
            f"arguments_{i}: {json_value(tool.schema)}",
        ]
    return "\n".join(rules)


def part_of(root: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """A part of a schema on its own, with the definitions that it may refer to."""
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return definitions | (dict(schema) if isinstance(schema, Mapping) else {})


def harmony_calls(spelled: Spelling, tools: Sequence[CallableTool]) -> str:
    """One call as a message in the commentary channel, up to its end, which ends the turn."""
    channel, constrain, message = (
        mark(spelled(name)) for name in ("<|channel|>", "<|constrain|>", "<|message|>")
    )
    rules = [f"start: {choice(f'call_{i}' for i in range(len(tools)))}"]
    for i, tool in enumerate(tools):
        head = literal(f"commentary to=functions.{tool.name} ")
        rules += [
            f'call_{i}: {channel} {head} {constrain} "json" {message} arguments_{i}',
            f"arguments_{i}: {json_value(tool.schema)}",
        ]
    return "\n".join(rules)
