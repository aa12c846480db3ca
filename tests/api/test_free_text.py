"""Tools that take one text: the text of their `input`, whole however its JSON was cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.free_text import FreeText, free_text_tool, input_of

TEXTS = st.text(st.sampled_from('a"\\\né😀{}u\t'), max_size=12)


@settings(max_examples=60)
@given(TEXTS, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(1, 4), max_size=60))
def test_the_text_is_the_same_however_its_json_was_cut(
    text: str, is_ascii: bool, indent: int | None, lengths: list[int]
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent)
    reader, said, at = FreeText(), "", 0
    for length in [*lengths, len(arguments)]:
        said += reader.push(arguments[at : at + length])
        at += length
    assert said + reader.finish() == input_of(arguments) == text


def test_the_text_comes_while_it_is_written() -> None:
    reader = FreeText()
    assert [reader.push(part) for part in ('{"inp', 'ut": "one', " two\\", 'n"}')] == [
        "",
        "one",
        " two",
        "\n",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"other": 1, "input": "x"}', "x"),
        ('{"other": 1}', '{"other": 1}'),
        ('{"input": 5}', '{"input": 5}'),
        ("", ""),
        (r'{"input": "a\ud83d"}', "a\ufffd"),
    ],
)
def test_arguments_of_another_form_are_not_lost(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


def test_the_model_sees_a_function_of_one_string_and_the_grammar_in_words() -> None:
    tool = free_text_tool("patch", "Edits files.", "start: 'x'")
    assert (tool.is_free_text, tool.schema and tool.schema["required"]) == (True, ["input"])
    assert tool.description == "Edits files.\n\nThe input has to follow this grammar:\nstart: 'x'"
