"""OpenAI's tools and the choice among them to ours, the older functions included. Pure.

A call of an older function is told in the older form: its namespace says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from daemon.api.free_text import free_text_tool
from daemon.api.json_body import Body, Path, refuse
from daemon.chat import CallRule, ToolChoice, ToolSpec

OLDER_FUNCTIONS = "functions"
"""The namespace of what stands in `functions` instead of `tools`."""

CALL_RULES = {"auto": CallRule.AUTO, "none": CallRule.NONE, "required": CallRule.REQUIRED}
"""The words for a choice among tools."""


class FunctionFields(Body):
    """A tool's function."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def spec(self, namespace: str | None = None) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.parameters, namespace)


class GrammarFields(Body):
    definition: str | None = None


class InputFormat(Body):
    grammar: GrammarFields | None = None


class CustomFields(Body):
    """A tool of free text."""

    name: str
    description: str | None = None
    format: InputFormat | None = None

    def spec(self) -> ToolSpec:
        grammar = self.format.grammar if self.format is not None else None
        return free_text_tool(
            self.name, self.description, grammar.definition if grammar is not None else None
        )


class ToolFields(Body):
    """A tool: its function nested, or flat beside `type`."""

    type: str | None = None
    function: FunctionFields | None = None
    custom: CustomFields | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def spec(self, path: Path) -> ToolSpec | None:
        """None for a kind of tool that only a vendor's server can run: no model calls it here."""
        if self.type == "custom":
            if self.custom is None:
                raise refuse((*path, "custom"), "is required.")
            return self.custom.spec()
        if self.type not in (None, "function"):
            return None
        if self.function is not None:
            return self.function.spec()
        if self.name is None:
            raise refuse((*path, "function"), "is required.")
        return ToolSpec(self.name, self.description, self.parameters)


def tool_specs(
    tools: Sequence[ToolFields], functions: Iterable[FunctionFields]
) -> tuple[ToolSpec, ...]:
    """All that may be called, each name once: the first that has it."""
    given = [each.spec(("tools", index)) for index, each in enumerate(tools)]
    given += [function.spec(OLDER_FUNCTIONS) for function in functions]
    named: dict[str, ToolSpec] = {}
    for spec in given:
        if spec is not None:
            named.setdefault(spec.name, spec)
    return tuple(named.values())


def is_older(tools: Sequence[ToolSpec]) -> bool:
    """Whether calls are told in the older form, which has room for one."""
    return bool(tools) and all(tool.namespace == OLDER_FUNCTIONS for tool in tools)


def tool_choice(choice: Any, *, may_repeat: bool, path: Path = ("tool_choice",)) -> ToolChoice:
    """A word, a tool, or those that are allowed."""
    if choice is None:
        return ToolChoice(may_repeat=may_repeat)
    if isinstance(choice, str):
        return ToolChoice(_rule(choice, path), may_repeat=may_repeat)
    if not isinstance(choice, dict):
        raise refuse(path, "has to be a word or an object.")
    if choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools", choice), may_repeat, path)
    return ToolChoice(CallRule.REQUIRED, (_tool_name(choice, path),), may_repeat)


def _allowed(allowed: Any, may_repeat: bool, path: Path) -> ToolChoice:
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list):
        raise refuse(path, "has to hold `allowed_tools` with a list of `tools`.")
    names = tuple(_tool_name(tool, path) for tool in tools)
    rule = _rule(allowed.get("mode", "auto"), path) if names else CallRule.NONE
    return ToolChoice(rule, names, may_repeat)


def _rule(word: Any, path: Path) -> CallRule:
    if not isinstance(word, str) or word not in CALL_RULES:
        raise refuse(path, f"has to be one of {', '.join(CALL_RULES)}, or name a tool.")
    return CALL_RULES[word]


def _tool_name(tool: Any, path: Path) -> str:
    """The name of a tool, nested or flat."""
    if isinstance(tool, dict):
        nested = tool.get("function", tool.get("custom", tool))
        name = nested.get("name") if isinstance(nested, dict) else None
        if isinstance(name, str):
            return name
    raise refuse(path, "names no tool.")
