"""A model's own chat template, rendered as transformers renders it.

Same sandbox, filters and helpers (`tojson` without HTML escapes, `raise_exception`,
`strftime_now`, loop controls, `{% generation %}`), without its deep copies of every message. The
clock is the caller's: a date that changes inside a conversation would cost all of its tokens.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlx_backend.control import unescape_json
from mlx_backend.errors import ModelDamaged, PromptRejected

CLOCK = "strftime_now"
"""What a template calls for the time."""

_RESERVED_OPTIONS = ("messages", "tools", "documents", "add_generation_prompt", CLOCK)


class Template(Protocol):
    """Renders messages (masked and normalised already) to text.

    `variables` are those that it asks its caller for, each with the words it compares it with.
    """

    source: str

    @property
    def variables(self) -> Mapping[str, frozenset[str]]: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        now: datetime,
        *,
        generation: bool,
    ) -> str:
        """Raises PromptRejected with the template's own words."""

    def pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        now: datetime,
        *,
        generation: bool,
    ) -> Iterator[str]:
        """The same text, piece by piece as the template writes it."""


class JinjaTemplate:
    """One Jinja source, or one for prompts with tools and one for those without. Thread-safe."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None
    ) -> None:
        self.source = source + (tool_source or "")
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        sources = [source] if tool_source is None else [source, tool_source]
        try:
            self.variables = _variables(environment, sources)
            self._plain = environment.from_string(source)
            self._with_tools = environment.from_string(tool_source or source)
        except jinja2.TemplateError as error:
            raise ModelDamaged(f"The chat template cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        now: datetime,
        *,
        generation: bool,
    ) -> str:
        return "".join(self.pieces(messages, tools, options, now, generation=generation))

    def pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        now: datetime,
        *,
        generation: bool,
    ) -> Iterator[str]:
        template = self._with_tools if tools else self._plain
        try:
            yield from template.generate(
                {**self._special_tokens, **options},
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generation,
                strftime_now=now.strftime,
            )
        except Exception as error:  # a template is a program of unknown origin
            raise PromptRejected(f"The chat template refuses this: {error}", "messages") from error


class FunctionTemplate:
    """A template that mlx-lm ships as a function, for models that come without a Jinja one."""

    def __init__(self, function: Callable[..., str], source: str) -> None:
        self.source = source
        self.variables = dict.fromkeys(_keywords(function, source), frozenset[str]())
        self._function = function

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        now: datetime,
        *,
        generation: bool,
    ) -> str:
        try:
            return self._function(
                [dict(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=generation,
                **options,
            )
        except Exception as error:  # as above
            raise PromptRejected(f"The chat template refuses this: {error}", "messages") from error

    def pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        now: datetime,
        *,
        generation: bool,
    ) -> Iterator[str]:
        yield self.render(messages, tools, options, now, generation=generation)


def _variables(
    environment: jinja2.Environment, sources: Iterable[str]
) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for tree in map(environment.parse, sources):
        for name in meta.find_undeclared_variables(tree):
            found.setdefault(name, frozenset())
        for comparison in tree.find_all(nodes.Compare):
            words = set(_words(comparison.find_all(nodes.Const)))
            for variable in comparison.find_all(nodes.Name):
                if variable.name in found:
                    found[variable.name] |= words
    return found


def _words(constants: Iterable[nodes.Const]) -> Iterator[str]:
    """The texts among them; a list of constants is one."""
    for constant in constants:
        values = constant.value if isinstance(constant.value, (list, tuple)) else [constant.value]
        yield from (value for value in values if isinstance(value, str))


def _keywords(function: Callable[..., str], source: str) -> set[str]:
    """The options that a function takes by name, or looks for among those that it takes."""
    looked_for = re.findall(r"[\"'](\w+)[\"'] in \w*kwargs|kwargs\.get\([\"'](\w+)", source)
    return {*inspect.signature(function).parameters, *map("".join, looked_for)}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse template options that would replace what the request itself says."""
    for name in options:
        if name in _RESERVED_OPTIONS:
            raise PromptRejected(f"`{name}` is not a template option.", f"template_options.{name}")


def mentions(source: str, name: str) -> bool:
    """Whether a template reads the message field `name`."""
    return re.search(rf"\.{name}\b|['\"]{name}['\"]", source) is not None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


class _Sandbox(ImmutableSandboxedEnvironment):
    """The same sandbox, with a short way to the fields of messages: what is safe is asked once
    for each type, and a field that is no method of dict is looked up as a key at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = (type(obj), attr)
        safe = self._safe.get(key)
        if safe is None:
            safe = self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return safe


_DICT_ATTRIBUTES = frozenset(dir(dict))


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is all there is."""

    tags: set[str] = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return unescape_json(text) if ensure_ascii else text


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
