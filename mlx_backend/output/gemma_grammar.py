"""The grammar of Gemma's calls: `call:f{key:<|"|>text<|"|>,count:3}`, the members in the schema's
order. Numbers are what the schema asks for; lists and mappings are well-formed, no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_backend.messages import CallableTool
from mlx_backend.output.argument_types import ArgumentTypes, Types
from mlx_backend.output.lark import choice, json_value, literal, part_of, tape_text
from mlx_backend.output.tape import MARK

_SCALARS = frozenset({"integer", "number", "boolean", "null"})
_NOTHING = '""'


@dataclass(frozen=True, slots=True)
class GemmaWriting:
    """The family's marks, as on the tape."""

    tokens: Collection[str]
    opening: str
    closing: str
    quote: str

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str:
        opening, closing = (tape_text(mark, self.tokens) for mark in (self.opening, self.closing))
        rules = [
            f"start: {'call+' if may_repeat else 'call'}",
            f"call: {opening} ({choice(f'call_{i}' for i in range(len(tools)))}) {closing}",
            *self._value_rules(),
        ]
        for i, tool in enumerate(tools):
            head = literal(f"call:{tool.name}{{")
            rules += [f'call_{i}: {head} call_{i}_first_0 "}}"', *self._members(f"call_{i}", tool)]
        return "\n".join(rules)

    def _members(self, prefix: str, tool: CallableTool) -> list[str]:
        """Rules for what may come from the n-th member on: as the first one, or behind another."""
        schema = tool.schema or {}
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return [f'{prefix}_first_0: (pair ("," pair)*)?']
        required, types = schema.get("required"), ArgumentTypes(schema)
        rules = []
        for n, (key, described) in enumerate(properties.items()):
            value = self._value(part_of(schema, described), types.of(key))
            rules.append(f"{prefix}_member_{n}: {literal(f'{key}:')} {prefix}_value_{n}")
            rules.append(f"{prefix}_value_{n}: {value}")
            is_required = isinstance(required, list) and key in required
            for place, comma in (("first", ""), ("next", '","')):
                without = "" if is_required else f" | {prefix}_{place}_{n + 1}"
                member = f"{comma} {prefix}_member_{n} {prefix}_next_{n + 1}"
                rules.append(f"{prefix}_{place}_{n}: {member}{without}")
        ends = (f"{prefix}_{place}_{len(properties)}: {_NOTHING}" for place in ("first", "next"))
        return [*rules, *ends]

    def _value(self, schema: Mapping[str, Any], types: Types) -> str:
        if types <= _SCALARS:
            return json_value(schema)
        if "string" not in types:
            item = schema.get("items")
            has_scalars = isinstance(item, Mapping) and _are_scalars(item)
            return json_value(schema) if has_scalars else "list | mapping"
        listed = schema.get("enum")
        if isinstance(listed, list) and listed and all(isinstance(t, str) and t for t in listed):
            quote = tape_text(self.quote, self.tokens)
            return f"{quote} ({choice(map(literal, listed))}) {quote}"
        return "text"

    def _value_rules(self) -> list[str]:
        quote = tape_text(self.quote, self.tokens)
        if self.quote.startswith(MARK):
            text = [f"text: {quote} /(.|\\n)*/ {quote}"]
        else:
            end = literal(self.quote)
            text = [f"text: {quote} rest", f"rest[suffix={end}]: /(.|\\n)*/"]
        return [
            *text,
            'value: text | /-?[0-9]+(\\.[0-9]+)?/ | "true" | "false" | "null" | list | mapping',
            'list: "[" (value ("," value)*)? "]"',
            'mapping: "{" (pair ("," pair)*)? "}"',
            'pair: /[a-zA-Z0-9_-]+/ ":" value',
        ]


def _are_scalars(item: Mapping[str, Any]) -> bool:
    listed = item.get("enum")
    if isinstance(listed, list):
        return not any(isinstance(value, str | list | dict) for value in listed)
    return item.get("type") in _SCALARS
