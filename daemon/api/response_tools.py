"""The tools of a Responses request, and which of them it wants called. Pure.

The model sees functions with one flat name each. A group's functions keep their own names where
no other tool has it, else the group's stands before them; a tool of free text is a function of one
string. Tools that only a vendor's server can run are left out, and said to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from daemon.api.free_text import free_text_tool
from daemon.api.json_body import Path, field_name, refuse
from daemon.api.openai_tools import CALL_RULES
from daemon.chat import CallRule, ToolChoice, ToolSpec

_JOINT = "__"
_CALLABLE = ("function", "custom")


@dataclass(frozen=True, slots=True)
class _Sent:
    """A tool as the client sent it: its own name, and the group it was in."""

    name: str
    namespace: str | None
    fields: Mapping[str, Any]
    path: Path


@dataclass(frozen=True, slots=True)
class Tools:
    """`told` is what the reply repeats, `ignored` the places of those that are left out."""

    specs: tuple[ToolSpec, ...] = ()
    told: tuple[Mapping[str, Any], ...] = ()
    ignored: tuple[str, ...] = ()

    def seen_name(self, name: str, namespace: str | None) -> str:
        """The name that the model sees, also of a tool that is not offered any more."""
        if namespace is None:
            return name
        found = self._known(name, namespace)
        return name if found is None else found.name

    def with_more(self, given: Iterable[Any], path: Path) -> tuple[Tools, tuple[ToolSpec, ...]]:
        """These and the tools that the conversation brings at some place, and the latter.

        They can be called from there on, and are shown there only. Their names do not depend on
        what comes later, nor do they change those of others.
        """
        specs, brought = list(self.specs), []
        for index, tool in enumerate(given):
            place = (*path, index)
            for sent in _callables(_flat(tool, place), place, None):
                known = Tools(tuple(specs))._known(sent.name, sent.namespace)
                is_free = sent.name not in {spec.name for spec in specs}
                spec = known or replace(_spec(sent, is_unique=is_free), is_deferred=True)
                if known is None:
                    specs.append(spec)
                brought.append(spec)
        return replace(self, specs=tuple(specs)), tuple(brought)

    def _known(self, name: str, namespace: str | None) -> ToolSpec | None:
        of_group = (spec for spec in self.specs if spec.namespace == namespace)
        return next((spec for spec in of_group if own_name(spec) == name), None)


def own_name(spec: ToolSpec) -> str:
    """The name by which the client knows the tool."""
    return spec.name if spec.namespace is None else spec.name.removeprefix(_prefix(spec.namespace))


def tools_of(given: Iterable[Any]) -> Tools:
    sent: list[_Sent] = []
    told: list[Mapping[str, Any]] = []
    ignored: list[str] = []
    for index, tool in enumerate(given):
        path: Path = ("tools", index)
        fields = _flat(tool, path)
        found = list(_callables(fields, path, None))
        if found or fields.get("type") == "namespace":
            sent += found
            told.append(fields)
        else:
            ignored.append(f"{field_name(path)} ({str(fields.get('type'))[:40]})")
    uses = Counter(each.name for each in sent)
    named: dict[str, ToolSpec] = {}
    for each in sent:
        spec = _spec(each, is_unique=uses[each.name] == 1)
        named.setdefault(spec.name, spec)
    return Tools(tuple(named.values()), tuple(told), tuple(ignored))


def _flat(tool: Any, path: Path) -> dict[str, Any]:
    """A function nested in its tool, as the chat format has it, becomes a flat one."""
    if not isinstance(tool, dict):
        raise refuse(path, "has to be an object.")
    nested = tool.get("function")
    flat = {**tool, **nested} if isinstance(nested, dict) else dict(tool)
    flat.pop("function", None)
    return {"type": flat.pop("type", None) or "function", **flat}


def _callables(fields: dict[str, Any], path: Path, namespace: str | None) -> Iterator[_Sent]:
    kind = fields["type"]
    if kind in _CALLABLE:
        yield _Sent(_name(fields, path), namespace, fields, path)
    elif kind == "namespace" and namespace is None:
        nested = fields.get("tools")
        if not isinstance(nested, list):
            raise refuse((*path, "tools"), "has to be a list of tools.")
        for index, tool in enumerate(nested):
            place = (*path, "tools", index)
            yield from _callables(_flat(tool, place), place, _name(fields, path))


def _name(fields: Mapping[str, Any], path: Path) -> str:
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise refuse((*path, "name"), "has to be a string." if name else "is required.")
    return name


def _spec(sent: _Sent, *, is_unique: bool) -> ToolSpec:
    name = sent.name
    if sent.namespace is not None and (not is_unique or name.startswith(_prefix(sent.namespace))):
        name = _prefix(sent.namespace) + name
    description = sent.fields.get("description")
    if not isinstance(description, str | None):
        raise refuse((*sent.path, "description"), "has to be a string.")
    if sent.fields["type"] == "custom":
        return free_text_tool(name, description, _grammar(sent.fields), sent.namespace)
    schema = sent.fields.get("parameters")
    if not isinstance(schema, dict | None):
        raise refuse((*sent.path, "parameters"), "has to be a JSON schema.")
    return ToolSpec(name, description, schema, sent.namespace)


def _grammar(fields: Mapping[str, Any]) -> str | None:
    form = fields.get("format")
    definition = form.get("definition") if isinstance(form, dict) else None
    return definition if isinstance(definition, str) else None


def _prefix(namespace: str) -> str:
    return f"{namespace}{_JOINT}"


def tool_choice_of(given: Any, parallel: bool | None, tools: Tools) -> ToolChoice:
    """Which of `tools` the answer calls. Raises BadRequest for one that is not there."""
    may_repeat = parallel is not False
    path: Path = ("tool_choice",)
    if given is None:
        return ToolChoice(may_repeat=may_repeat)
    if isinstance(given, str):
        if given not in CALL_RULES:
            raise refuse(path, f"has to be one of {', '.join(CALL_RULES)}, or an object.")
        return ToolChoice(CALL_RULES[given], (), may_repeat)
    if not isinstance(given, dict):
        raise refuse(path, "has to be a string or an object.")
    if given.get("type") != "allowed_tools":
        return ToolChoice(CallRule.REQUIRED, _chosen([given], path, tools), may_repeat)
    allowed = given.get("tools")
    if given.get("mode") not in ("auto", "required"):
        raise refuse((*path, "mode"), "has to be auto or required.")
    if not isinstance(allowed, list) or not allowed:
        raise refuse((*path, "tools"), "has to be a list of tools, at least one.")
    names = _chosen(allowed, (*path, "tools"), tools)
    return ToolChoice(CALL_RULES[given["mode"]], names, may_repeat)


def _chosen(given: list[Any], path: Path, tools: Tools) -> tuple[str, ...]:
    """The names that the model sees of tools that are named by the client."""
    names: list[str] = []
    for index, tool in enumerate(given):
        place = path if path == ("tool_choice",) else (*path, index)
        fields = _flat(tool, place)
        if fields["type"] not in _CALLABLE:
            raise refuse((*place, "type"), "can only be function or custom here.")
        namespace = fields.get("namespace")
        name = tools.seen_name(
            _name(fields, place), namespace if isinstance(namespace, str) else None
        )
        if name not in {spec.name for spec in tools.specs}:
            raise refuse((*place, "name"), f"{name[:100]!r} is not among the tools.")
        names.append(name)
    return tuple(dict.fromkeys(names))
