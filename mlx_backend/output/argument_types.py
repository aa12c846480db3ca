"""Arguments that a model wrote as text, as the JSON values that the tool's schema asks for.

The schema decides, never the look of the text: `02134` is a string where a string is asked for.
Text that is not of a type it may have stays a string, so that the call is kept and its receiver
can say what is wrong. References are followed inside the schema only; one that leads nowhere, in
a circle or out of it, stands for a string. Nothing here raises.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from mlx_backend.output.call_format import NotACall
from mlx_backend.output.json_reader import JsonReader
from mlx_backend.output.tape import OutputEnded, Tape

Types: TypeAlias = frozenset[str]
"""JSON types that a value may have: null, boolean, integer, number, string, array, object."""


class LeftOut(Enum):
    LEFT_OUT = "left out"


LEFT_OUT: Final = LeftOut.LEFT_OUT
"""No value: an empty text where neither a string nor null may be."""

STRING: Types = frozenset({"string"})
EVERY: Types = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
UNSTATED: Types = frozenset({"string", "array", "object"})
"""Read as these where nothing is said: a container shows, a number only seems to be one."""

_ALIASES = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "double": "number",
    "bool": "boolean", "list": "array", "tuple": "array", "dict": "object", "map": "object",
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = ("true", "false", "null", "none")
_MOST_DIGITS = 400
_LONGEST_NUMBER = 40  # where the text may be a string as well
_MOST_STEPS = 2_000


class ArgumentTypes:
    """The types of a tool's arguments, each found when it is first asked for."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._schema = schema if isinstance(schema, Mapping) else {}
        self._known: dict[str, Types | None] = {}

    def of(self, name: str, said: Types | None = None) -> Types:
        """`said`: what the model says of it itself, for where the schema does not."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name] or said or UNSTATED

    def _find(self, name: str) -> Types | None:
        reader = _Reader(self._schema)
        others: Types | None = None
        for branch in reader.branches(self._schema):
            properties = branch.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                return reader.types(properties[name])
            if others is None and isinstance(branch.get("additionalProperties"), Mapping):
                others = reader.types(branch["additionalProperties"])
        return others


class _Reader:
    """One walk through a schema, in a bounded number of steps."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def types(self, schema: Any) -> Types | None:
        """What the schema allows; None if it does not say."""
        stated = self._stated(schema, frozenset())
        return STRING if stated == frozenset() else stated

    def branches(self, schema: Any, seen: frozenset[str] = frozenset()) -> list[Mapping[str, Any]]:
        """The schema, and what it refers to and combines, flat."""
        self._steps += 1
        if not isinstance(schema, Mapping) or self._steps > _MOST_STEPS:
            return []
        found = [schema]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            found += self.branches(self._target(reference), seen | {reference})
        for combined in ("allOf", "anyOf", "oneOf"):
            for branch in _list(schema.get(combined)):
                found += self.branches(branch, seen)
        return found

    def _stated(self, schema: Any, seen: frozenset[str]) -> Types | None:
        self._steps += 1
        if schema is True:
            return None
        if not isinstance(schema, Mapping) or self._steps > _MOST_STEPS:
            return STRING
        statements = [_own_types(schema)]
        if "$ref" in schema:
            statements.append(self._referred(schema["$ref"], seen))
        statements += [self._stated(branch, seen) for branch in _list(schema.get("allOf"))]
        for choice in ("anyOf", "oneOf"):
            if branches := _list(schema.get(choice)):
                statements.append(_any_of(self._stated(branch, seen) for branch in branches))
        allowed = _all_of(statements)
        return allowed | {"null"} if allowed and schema.get("nullable") is True else allowed

    def _referred(self, reference: Any, seen: frozenset[str]) -> Types | None:
        if not isinstance(reference, str) or reference in seen:
            return STRING
        return self._stated(self._target(reference), seen | {reference})

    def _target(self, reference: str) -> Any:
        """What a JSON pointer into this schema points at, None for any other reference."""
        if not reference.startswith("#"):
            return None
        at: Any = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(at, Mapping) and step in at:
                at = at[step]
            elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
                at = at[int(step)]
            else:
                return None
        return at


def value_of(text: str, types: Types) -> Any:
    """The JSON value that `text` means where `types` are allowed, or `LEFT_OUT`."""
    if types == STRING:
        return text
    bare = text.strip()
    if not bare:
        return _value_of_nothing(text, types)
    word = bare.lower()
    if "null" in types and word in ("null", "none"):
        return None
    if "boolean" in types and word in ("true", "false"):
        return word == "true"
    number = _number(bare, types)
    if number is not None:
        return number
    if bare[0] in "[{":
        return _container(text, types)
    return text


def may_be_other_than_string(text: str, types: Types) -> bool:
    """Whether `text`, or what it may still become, can have another value than its characters.

    Once it is False, it stays so, and the text can be passed on as it comes.
    """
    if types == STRING:
        return False
    if "string" not in types:
        return True
    bare = text.strip()
    if not bare:
        return True
    if bare[0] in "[{":
        return bool(types & {"array", "object"})
    if bare[0] in "+-.0123456789":
        return bool(types & {"integer", "number"}) and len(bare) <= _LONGEST_NUMBER
    return any(word.startswith(bare.lower()) for word in _WORDS)


def _value_of_nothing(text: str, types: Types) -> Any:
    if "string" in types:
        return text
    return None if "null" in types else LEFT_OUT


def _number(text: str, types: Types) -> int | float | None:
    """The number that `text` is; where it may be a string too, only if JSON would write it so."""
    if not types & {"integer", "number"} or len(text) > _MOST_DIGITS:
        return None
    if _NUMBER.fullmatch(text) is None:
        return None
    may_be_string = "string" in types
    if may_be_string and (len(text) > _LONGEST_NUMBER or _JSON_NUMBER.fullmatch(text) is None):
        return None
    try:
        if "number" in types:
            return _finite(text) if set(text) & set(".eE") else int(text)
        whole = Decimal(text)
        return int(whole) if whole == whole.to_integral_value() else None
    except (ValueError, InvalidOperation):
        return None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def _container(text: str, types: Types) -> Any:
    """The list or mapping that `text` is in JSON; or in Python, where it can be no string."""
    value = _json_value(text)
    if value is None and "string" not in types:
        value = _json_value(_as_json(text))
    is_wanted = isinstance(value, list | dict) and _type_of(value) in types
    return value if is_wanted else text


def _json_value(text: str) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(text, strict=False, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None


def _as_json(text: str) -> str:
    """What looks like JSON or Python, as JSON; "" if it cannot be read, or more text follows."""
    tape, parts = Tape(), list[str]()
    tape.push(text.strip())
    tape.end(is_cut=False)
    try:
        for _ in JsonReader(tape, parts.append, is_python=True).read():
            pass
    except (NotACall, OutputEnded):
        return ""
    return "".join(parts) if tape.is_empty else ""


def _own_types(schema: Mapping[str, Any]) -> Types | None:
    """What the schema says itself, by `type` or by the values it lists."""
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    known = {_ALIASES.get(name.lower(), name.lower()) for name in names if isinstance(name, str)}
    if known & EVERY:
        return frozenset(known & EVERY)
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if values:
        return frozenset(map(_type_of, values))
    if known:
        return STRING
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "array" if isinstance(value, list) else "object"


def _any_of(statements: Iterable[Types | None]) -> Types | None:
    allowed: Types = frozenset()
    for stated in statements:
        if stated is None:
            return None
        allowed |= stated
    return allowed


def _all_of(statements: Iterable[Types | None]) -> Types | None:
    allowed: Types | None = None
    for stated in statements:
        if stated is not None:
            allowed = stated if allowed is None else _common(allowed, stated)
    return allowed


def _common(one: Types, other: Types) -> Types:
    """What both allow; an integer is a number, too."""
    both = one & other
    if ("integer" in one and "number" in other) or ("number" in one and "integer" in other):
        both |= {"integer"}
    return both


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
