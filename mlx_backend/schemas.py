"""Tools' schemas as a model can read them: every local reference with what it refers to.

A template prints properties one by one and never the definitions beside them, so that a reference
would tell the model nothing. What cannot be resolved (a cycle, a missing definition, another
document, which is never fetched) is shown as text of any kind; so is what lies behind more
references than anybody writes by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

_MOST_NODES = 20_000  # a few references to each other can stand for billions
_DEFINITIONS = ("$defs", "definitions")
_UNKNOWN: Mapping[str, Any] = {"type": "string"}


def resolved_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool with its parameters' references resolved; itself where there are none."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping) or not _has_references(parameters):
        return tool
    return {**tool, "function": {**function, "parameters": _Resolver(parameters).whole()}}


class _Resolver:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes_left = _MOST_NODES

    def whole(self) -> dict[str, Any]:
        kept = {name: part for name, part in self._root.items() if name not in _DEFINITIONS}
        return dict(self._resolved(kept, ()))

    def _resolved(self, value: Any, within: tuple[str, ...]) -> Any:
        """`value` without references; `within` are those that led here."""
        self._nodes_left -= 1
        if isinstance(value, Mapping):
            if isinstance(value.get("$ref"), str):
                return self._referred(value, within)
            return {name: self._resolved(part, within) for name, part in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._resolved(part, within) for part in value]
        return value

    def _referred(self, value: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
        """What is referred to, with what is said beside the reference."""
        reference = value["$ref"]
        beside = {name: part for name, part in value.items() if name != "$ref"}
        found: Any = _UNKNOWN
        if reference not in within and self._nodes_left > 0:
            found = self._found(reference)
        told = self._resolved({**found, **beside}, (*within, reference))
        return dict(told) if isinstance(told, Mapping) else dict(_UNKNOWN)

    def _found(self, reference: str) -> Mapping[str, Any]:
        """The part of the schema at a JSON pointer (RFC 6901) in a fragment."""
        part: Any = self._root
        if not reference.startswith("#"):
            return _UNKNOWN
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, Sequence) and name.isdecimal() and int(name) < len(part):
                part = part[int(name)]
            else:
                part = part.get(name) if isinstance(part, Mapping) else None
        return part if isinstance(part, Mapping) else _UNKNOWN


def _has_references(value: Any) -> bool:
    if isinstance(value, Mapping):
        return isinstance(value.get("$ref"), str) or any(map(_has_references, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(_has_references, value))
    return False
