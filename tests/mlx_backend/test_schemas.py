"""What a template shows of a tool's schema: what its references refer to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.template_families import FAMILIES, byte_level, encoder_of
from tests.mlx_backend.words import say, written

SHOWING = "{% if tools %}{{ tools[0].function | tojson }}{% endif %}{{ messages[0].content }}"


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "find", "parameters": parameters}}


def shown(parameters: Any) -> Any:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer.get_vocab_size())
    encoder = MlxPromptEncoder(tokenizer, JinjaTemplate(SHOWING, {}), vocabulary)
    prompt = encoder.chat([say("user", "a")], [tool(parameters)])
    return json.JSONDecoder().raw_decode(written(encoder, prompt.tokens))[0]["parameters"]


def properties(**each: Any) -> dict[str, Any]:
    return {"type": "object", "properties": each}


def test_a_chain_of_references_is_shown_as_what_it_ends_in() -> None:
    """F5."""
    schema = properties(
        limit={"$ref": "#/$defs/Limit", "description": "At most."},
        names={"type": "array", "items": {"$ref": "#/definitions/a~1b%20c"}},
        either={"anyOf": [{"$ref": "#/$defs/Number"}, {"type": "null"}]},
        third={"$ref": "#/properties/either/anyOf/1"},
    )
    schema["$defs"] = {"Limit": {"$ref": "#/$defs/Number"}, "Number": {"type": "integer"}}
    schema["definitions"] = {"a/b c": {"type": "string", "enum": ["x"]}}
    assert shown(schema) == properties(
        limit={"type": "integer", "description": "At most."},
        names={"type": "array", "items": {"type": "string", "enum": ["x"]}},
        either={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        third={"type": "null"},
    )


@pytest.mark.parametrize(
    "reference",
    ["#/$defs/None", "https://example.invalid/schema.json", "#/$defs/Loop", "", "#/a/b"],
)
def test_what_cannot_be_resolved_is_text(reference: str) -> None:
    schema = properties(value={"$ref": reference})
    schema["$defs"] = {"Loop": {"$ref": "#/$defs/Other"}, "Other": {"$ref": "#/$defs/Loop"}}
    assert shown(schema) == properties(value={"type": "string"})


def test_a_tree_ends_where_it_comes_back_to_itself() -> None:
    schema: Any = properties(root={"$ref": "#/$defs/Node"})
    schema["$defs"] = {"Node": properties(next={"$ref": "#/$defs/Node"}, all={"$ref": "#"})}
    root = shown(schema)["properties"]["root"]["properties"]
    assert root["next"] == {"type": "string"}
    assert root["all"]["properties"]["root"] == {"type": "string"}


def test_references_that_stand_for_billions_end_early() -> None:
    names = [f"D{i}" for i in range(40)]
    schema: Any = properties(value={"$ref": "#/$defs/D0"})
    schema["$defs"] = {
        name: properties(a={"$ref": f"#/$defs/{after}"}, b={"$ref": f"#/$defs/{after}"})
        for name, after in zip(names, [*names[1:], "End"], strict=True)
    }
    assert len(json.dumps(shown(schema))) < 10_000_000


def test_a_schema_without_references_keeps_its_definitions_and_its_order() -> None:
    schema = {"$defs": {"x": {}}, "type": "object", "properties": {"b": {}, "a": {}}}
    assert json.dumps(shown(schema)) == json.dumps(schema)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shows_tools_whose_schemas_refer(family: str) -> None:
    schema = properties(limit={"$ref": "#/$defs/Limit"})
    schema["$defs"] = {"Limit": {"type": "integer", "description": "At most."}}
    encoder = encoder_of(family)
    text = written(encoder, encoder.chat([say("user", "a")], [tool(schema)]).tokens)
    assert "At most." in text
    assert "$ref" not in text
