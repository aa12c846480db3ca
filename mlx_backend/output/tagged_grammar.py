"""Grammars of calls that are written as tags: what `tagged` reads, with its template's white space.

A string stands as it is, up to the first closing tag; everything else as JSON that its schema
describes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_backend.messages import CallableTool
from mlx_backend.output.argument_types import ArgumentTypes, Types
from mlx_backend.output.lark import LINE_BREAK, choice, json_value, literal, part_of, tape_text
from mlx_backend.output.tape import MARK

MAY_BREAK = "\r"
"""In a `Writing`: a line break that some models of the family leave out."""

_ANY_TEXT = "(.|\\n)*"
_ANY_KEY = "/[a-zA-Z0-9_.-]+/"


@dataclass(frozen=True, slots=True)
class Writing:
    """A family's calls in their parts, as on the tape.

    `{name}`, `{key}` and, where the tag says it, `{type}` and `{is_string}` are filled in.
    `literal_opening` and `literal_end` stand around strings that hold what looks like markup; then
    others may not.
    """

    tokens: Collection[str]
    call: str
    argument: str
    value_end: str
    call_end: str
    block: str = ""
    block_end: str = ""
    literal_opening: str = ""
    literal_end: str = ""

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str:
        calls = "call+" if may_repeat else "call"
        rules = [
            f"start: {self._written(self.block)} {calls} {self._written(self.block_end)}",
            f"call: {choice(f'call_{i}' for i in range(len(tools)))}",
            *self._text_rules(),
        ]
        for i, tool in enumerate(tools):
            names, arguments = self._arguments(f"argument_{i}", tool.schema)
            head = self._written(self.call.replace("{name}", tool.name))
            end = self._written(self.call_end)
            rules += [f"call_{i}: {head} {' '.join(names)} {end}", *arguments]
        return "\n".join(rules)

    def _arguments(
        self, prefix: str, schema: Mapping[str, Any] | None
    ) -> tuple[list[str], list[str]]:
        """A call's arguments in order, and the rules that they stand for."""
        properties = (schema or {}).get("properties")
        if not isinstance(properties, Mapping):
            before, _, after = self._head("{key}", frozenset({"string"})).partition("{key}")
            head = f"{self._written(before)} {_ANY_KEY} {self._written(after)}"
            return [f"{prefix}*"], [f"{prefix}: {head} text"]
        required = (schema or {}).get("required")
        types = ArgumentTypes(schema)
        names, rules = [], []
        for i, (key, described) in enumerate(properties.items()):
            if described is False:
                continue
            rule = f"{prefix}_{i}"
            is_required = isinstance(required, list) and key in required
            names.append(rule if is_required else f"{rule}?")
            head = self._written(self._head(key, types.of(key)))
            if "string" in types.of(key):
                rules.append(f"{rule}: {head} {self._text(described)}")
            else:
                value = json_value(part_of(schema or {}, described))
                rules.append(f"{rule}: {head} {rule}_value {self._written(self.value_end)}")
                rules.append(f"{rule}_value: {value}")
        return names, rules

    def _head(self, key: str, types: Types) -> str:
        is_string = "string" in types
        kind = "string" if is_string else _plain_type(types)
        head = self.argument.replace("{type}", kind)
        return head.replace("{is_string}", str(is_string).lower()).replace("{key}", key)

    def _text(self, schema: Any) -> str:
        """A string as it is, up to and with its end; one of a few where the schema lists them."""
        listed = schema.get("enum") if isinstance(schema, Mapping) else None
        if not (isinstance(listed, list) and listed and all(isinstance(t, str) for t in listed)):
            return "text"
        texts = f"({choice(literal(text) if text else LINE_BREAK for text in listed)})"
        before, behind = self._written(self.literal_opening), self._written(self.literal_end)
        return f"{before} {texts} {behind} {self._end}"

    @property
    def _end(self) -> str:
        return self._written(self.value_end)

    def _text_rules(self) -> list[str]:
        if not self.literal_opening:
            return self._text_until("text", self.value_end)
        opening = self._written(self.literal_opening)
        return [
            f"text: /[^<&\\n]*/ {self._end} | {opening} literal",
            *self._text_until("literal", self.literal_end + self.value_end),
        ]

    def _text_until(self, rule: str, end: str) -> list[str]:
        """Any text up to and with `end`, which is told apart by its first token, if it has one."""
        before, mark, after = end.partition(MARK)
        if mark:
            text = f"/{_ANY_TEXT}{''.join(map(_escaped, before))}/"
            return [f"{rule}: {text} {self._written(mark + after)}"]
        before, may_break, after = end.partition(MAY_BREAK)
        return [
            f"{rule}: {rule}_end {self._written(may_break + after)}",
            f"{rule}_end[suffix={literal(before)}]: /{_ANY_TEXT}/",
        ]

    def _written(self, text: str) -> str:
        lines = text.split(MAY_BREAK)
        return f" {LINE_BREAK} ".join(tape_text(line, self.tokens) for line in lines)


def _escaped(character: str) -> str:
    return character if character.isalnum() else f"\\{character}"


def _plain_type(types: Types) -> str:
    names = sorted(types - {"null"}) or ["null"]
    return "number" if names[0] == "integer" else names[0]
