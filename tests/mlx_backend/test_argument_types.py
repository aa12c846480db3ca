"""Arguments written as text become what the tool's schema asks for, and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_backend.output.argument_types import (
    EVERY,
    LEFT_OUT,
    STRING,
    ArgumentTypes,
    Types,
    may_be_other_than_string,
    value_of,
)


def types(*names: str) -> Types:
    return frozenset(names)


@pytest.mark.parametrize(
    ("text", "allowed", "value"),
    [
        ("02134", types("string"), "02134"),
        ("true", types("string"), "true"),
        ("null", types("string"), "null"),
        ("\n  &lt;b&gt; ", types("string"), "\n  &lt;b&gt; "),
        ("5", types("integer"), 5),
        ("5.0", types("integer"), 5),
        (" 5\n", types("integer"), 5),
        ("1e2", types("integer"), 100),
        ("-0", types("integer"), 0),
        ("5.5", types("integer"), "5.5"),
        ("2026-01-15", types("integer"), "2026-01-15"),
        ("1_000", types("integer"), "1_000"),
        ("٣", types("integer"), "٣"),
        ("9" * 5_000, types("integer"), "9" * 5_000),
        ("1e2", types("number"), 100.0),
        ("7", types("number"), 7),
        ("1e999", types("number"), "1e999"),
        ("NaN", types("number"), "NaN"),
        ("True", types("boolean"), True),
        ("false", types("boolean"), False),
        ("yes", types("boolean"), "yes"),
        ('["a"]', types("array"), ["a"]),
        ("['a', True, None, (1, 2)]", types("array"), ["a", True, None, [1, 2]]),
        (r"['\d+', 'it\'s', '\u00e9']", types("array"), ["\\d+", "it's", "é"]),
        ('{"a": {"b": [1.5]}}', types("object"), {"a": {"b": [1.5]}}),
        ("{'a': 1,}", types("object"), {"a": 1}),
        ('{"a": 1', types("object"), '{"a": 1'),
        ("[1] and more", types("array"), "[1] and more"),
        ("{1, 2}", types("object"), "{1, 2}"),
        ("[" * 100_000, types("array"), "[" * 100_000),
        ("[NaN]", types("array"), [None]),
        ("[1e999]", types("array"), "[1e999]"),
        ("['a']", types("array", "string"), "['a']"),
        ('["a"]', types("array", "string"), ["a"]),
        ('{"a": 1}', types("array"), '{"a": 1}'),
        ("", types("integer", "null"), None),
        ("", types("integer"), LEFT_OUT),
        ("", types("string", "null"), ""),
        ("null", types("integer", "null"), None),
        ("None", types("string", "null"), None),
        ("7", types("integer", "string"), 7),
        ("02134", types("integer", "string"), "02134"),
        ("[1", types("array", "string"), "[1"),
    ],
)
def test_text_becomes_what_the_schema_allows(text: str, allowed: Types, value: Any) -> None:
    found = value_of(text, allowed)
    assert found == value
    assert type(found) is type(value)


SCHEMA = {
    "$defs": {
        "Limit": {"$ref": "#/$defs/Count"},
        "Count": {"type": "integer"},
        "Here": {"$ref": "#/$defs/There"},
        "There": {"$ref": "#/$defs/Here"},
        "a/b": {"type": "boolean"},
        "Tree": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Tree"}]},
    },
    "properties": {
        "limit": {"$ref": "#/$defs/Limit", "description": "how many"},
        "wrapped": {"allOf": [{"$ref": "#/$defs/Limit"}]},
        "several": {"anyOf": [{"type": "integer"}, {"type": "array"}, {"type": "null"}]},
        "listed": {"type": ["integer", "null"]},
        "circle": {"$ref": "#/$defs/Here"},
        "tree": {"$ref": "#/$defs/Tree"},
        "missing": {"$ref": "#/$defs/Nothing"},
        "elsewhere": {"$ref": "https://example.org/schema.json#/x"},
        "escaped": {"$ref": "#/$defs/a~1b"},
        "nullable": {"type": "number", "nullable": True},
        "narrowed": {"type": ["integer", "string"], "allOf": [{"type": "number"}]},
        "enumerated": {"enum": ["fast", "slow"]},
        "constant": {"const": 5},
        "shaped": {"properties": {"a": {}}},
        "itemized": {"items": {"type": "string"}},
        "upper": {"type": "STRING"},
        "unheard": {"type": "date"},
        "nonsense": 7,
        "never": {"type": "integer", "allOf": [{"type": "string"}]},
    },
    "additionalProperties": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("limit", types("integer")),
        ("wrapped", types("integer")),
        ("several", types("integer", "array", "null")),
        ("listed", types("integer", "null")),
        ("circle", STRING),
        ("tree", types("integer", "string")),
        ("missing", STRING),
        ("elsewhere", STRING),
        ("escaped", types("boolean")),
        ("nullable", types("number", "null")),
        ("narrowed", types("integer")),
        ("enumerated", STRING),
        ("constant", types("integer")),
        ("shaped", types("object")),
        ("itemized", types("array")),
        ("upper", STRING),
        ("unheard", STRING),
        ("nonsense", STRING),
        ("never", STRING),
        ("other", types("boolean")),
    ],
)
def test_types_are_found_through_references_and_branches(name: str, allowed: Types) -> None:
    assert ArgumentTypes(SCHEMA).of(name) == allowed


def test_arguments_of_a_schema_that_is_a_reference_itself_are_found() -> None:
    schema = {"$ref": "#/$defs/Arguments", "$defs": {"Arguments": {"properties": {"n": SCHEMA}}}}
    assert ArgumentTypes(schema | {"allOf": [{"properties": {"m": {"type": "null"}}}]}).of(
        "m"
    ) == types("null")
    assert ArgumentTypes(schema).of("n") == types("object")


def test_where_the_schema_says_nothing_the_model_has_the_say_and_then_the_look_of_containers() -> (
    None
):
    untold = ArgumentTypes({"properties": {"any": {}, "n": {"type": "integer"}}})
    assert untold.of("any", types("number")) == types("number")
    assert untold.of("n", types("string")) == types("integer")
    for unknown in (untold.of("any"), untold.of("other"), ArgumentTypes(None).of("x")):
        assert value_of('{"a": 1}', unknown) == {"a": 1}
        assert value_of("5", unknown) == "5"
        assert value_of("true", unknown) == "true"


def test_a_schema_that_unfolds_without_end_is_given_up_soon() -> None:
    definitions = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(60)
    }
    schema = {"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/d0"}}}
    assert ArgumentTypes(schema).of("x") == STRING


EACH_TYPE = st.frozensets(st.sampled_from(sorted(EVERY)), min_size=1)
WRITTEN = st.one_of(
    st.text("0123456789.eE+- truefalsnTFN[]{}'\":,\\\n", max_size=50),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ).flatmap(lambda value: st.sampled_from([repr(value), json.dumps(value)])),
)


@given(WRITTEN, EACH_TYPE)
def test_whatever_is_written_is_of_an_allowed_type_or_the_text(text: str, allowed: Types) -> None:
    value = value_of(text, allowed)
    if value is LEFT_OUT:
        return
    json.dumps(value, allow_nan=False)
    kind = json_type(value)
    assert value == text or kind in allowed or (kind == "integer" and "number" in allowed)


def json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {type(None): "null", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


@given(WRITTEN, EACH_TYPE)
def test_text_that_was_passed_on_as_a_string_is_one_when_it_is_whole(
    text: str, allowed: Types
) -> None:
    were_open = [may_be_other_than_string(text[:end], allowed) for end in range(len(text) + 1)]
    assert were_open == sorted(were_open, reverse=True)
    if not were_open[-1]:
        assert value_of(text, allowed) == text


def test_certain_strings_are_passed_on_from_the_first_character() -> None:
    assert not may_be_other_than_string("", STRING)
    assert may_be_other_than_string("nul", types("string", "null"))
    assert not may_be_other_than_string("nuk", types("string", "null"))
    assert not may_be_other_than_string("#", types("string", "array"))
    assert may_be_other_than_string("[", types("string", "array"))
    assert not may_be_other_than_string("[", types("string", "integer"))
