"""Calls written as JSON: literal marks in strings, what is put right, what is cut, what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_backend.messages import AnswerForm, CallArguments
from mlx_backend.output.answer_output import AnswerOutput
from mlx_backend.output.json_reader import DEEPEST
from tests.mlx_backend.answers import TOOLS, Told, made, read, sampled, told

HERMES = made("hermes", has_marks=False)
MARKED = made("hermes", has_marks=True)
FORM = AnswerForm(tools=TOOLS)


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>'


def read_all(text: str, *, is_cut: bool = False) -> Told:
    """Checks on the way that tokens make no difference."""
    pieces = read(HERMES, text, FORM, is_cut=is_cut)
    assert read(HERMES, text, FORM, is_cut=is_cut, sizes=()) == pieces
    return told(pieces)


@pytest.mark.parametrize("format", [HERMES, MARKED], ids=["spelled", "marks"])
def test_marks_in_a_string_are_its_text(format: Any) -> None:
    content = 'see </tool_call> and <tool_call>{"name": "x"}</tool_call> <think>'
    for sizes in ((1,), (2, 5, 3), ()):
        pieces = read(format, call(json.dumps({"content": content})), FORM, sizes=sizes)
        assert told(pieces).calls == [("write_file", {"content": content})]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32)
JSON = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), -float("inf"))) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=3), st.booleans(), st.booleans())
def test_any_json_is_told_as_it_is(arguments: dict[str, Any], ascii: bool, indents: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii, indent=2 if indents else None)
    assert read_all(call(text)).calls == [("write_file", arguments)]
    twice = json.dumps(text, ensure_ascii=ascii)
    assert read_all(call(twice)).calls == [("write_file", arguments)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'{"a": "\d+\s"}', {"a": r"\d+\s"}),
        (r'{"a": "C:\new\u12"}', {"a": "C:\new\\u12"}),
        ('{"a": "line\nnext\ttab"}', {"a": "line\nnext\ttab"}),
        (r'{"a": "it\'s"}', {"a": "it's"}),
        (r'{"a": "\ud83d\ude42 \ud83d x \udc00"}', {"a": "🙂 \ufffd x \ufffd"}),
        ("{'a': 'b \"c\"'}", {"a": 'b "c"'}),
        ('{"a": True, "b": None, "c": NaN}', {"a": True, "b": None, "c": None}),
        ("{a: 1, b_c: word/path}", {"a": 1, "b_c": "word/path"}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": 007, "b": +1, "c": .5, "d": 1_000}', {"a": 7, "b": 1, "c": 0.5, "d": 1000}),
        ('{"a": 1e400}', {"a": float("inf")}),
        ('{"a": {"b": [1}', {"a": {"b": [1]}}),
        ("{}", {}),
        ("null", {}),
        ('""', {}),
    ],
)  # fmt: skip
def test_what_is_clear_though_it_is_no_json_is_put_right(written: str, meant: object) -> None:
    found = read_all(call(written) + " more")
    assert found.calls == [("write_file", meant)]
    assert (found.text, found.warnings) == ("more", [])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name" "list_files"}</tool_call>',
        "<tool_call><function=list_files></function></tool_call>",
        "<tool_call>list_files()</tool_call>",
        '<tool_call>{"name": "list_files", "arguments": [1]}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call></tool_call>",
    ],
)
def test_a_call_that_cannot_be_read_is_text_and_the_next_one_is_a_call(text: str) -> None:
    found = read_all(f"a {text}\n{call('{}')} b")
    assert found.text.startswith(f"a {text}")
    assert found.calls == [("write_file", {})]
    assert len(found.warnings) == 1


def test_arguments_that_break_off_into_something_else_leave_the_call_unfinished() -> None:
    found = read_all(call('{"a": "say "hi" now"}') + call('{"b": 1}'))
    assert found.begun == ["write_file"]
    assert found.calls == [("write_file", {"b": 1})]
    assert len(found.warnings) == 1
    assert "hi" in found.text


@pytest.mark.parametrize("missing", ["</tool_call>", "}\n</tool_call>", "1}}\n</tool_call>"])
def test_what_the_end_leaves_out_is_put_right_where_it_is_clear(missing: str) -> None:
    text = call('{"a": 21}').removesuffix(missing)
    found = read_all(text)
    assert len(found.calls) == 1
    assert (found.text, found.warnings) == ("", [])


@pytest.mark.parametrize("written", ['{"a": "b', '{"a": ', '{"a"', "{", '{"a": 1, '])
def test_what_the_end_leaves_open_is_no_whole_call(written: str) -> None:
    found = read_all(call("X").partition("X")[0] + written)
    assert (found.calls, found.begun) == ([], ["write_file"])
    assert len(found.warnings) == 1


def test_a_call_that_ends_before_its_arguments_is_text() -> None:
    text = '<tool_call>\n{"name": "write_file", "argu'
    for is_cut in (True, False):
        found = read_all(text, is_cut=is_cut)
        assert (found.text, found.calls, found.begun) == (text, [], [])
        assert len(found.warnings) == 1


def test_a_cut_answer_has_the_calls_that_were_whole_by_then_and_no_other() -> None:
    text = call('{"path": "x"}') + call('{"path": "y"}')
    whole_from = [text.index('}}') + 1, text.rindex('}}') + 1]  # fmt: skip
    for length in range(len(text)):
        found = read_all(text[:length], is_cut=True)
        assert len(found.calls) == sum(length >= place for place in whole_from)
        is_behind_first = whole_from[0] <= length <= len(text) // 2
        assert found.text == "" if is_behind_first or found.begun else True


def test_keys_may_come_in_any_order_and_by_other_names() -> None:
    for text in (
        '{"arguments": {"path": "a"}, "name": "write_file"}',
        '{"id": "x", "name": "write_file", "parameters": {"path": "a"}}',
        '{"type": "function", "function": {"name": "write_file", "arguments": {"path": "a"}}}',
        '{"function": "write_file", "arguments": {"path": "a"}, "note": [{}]}',
        '[{"name": "write_file", "arguments": {"path": "a"}}]',
        '{"name": "write_file", "arguments": {"path": "a"}}}}',
    ):
        found = read_all(f"<tool_call>{text}</tool_call> b")
        assert (found.calls, found.text) == ([("write_file", {"path": "a"})], "b")


def test_a_call_without_its_marks_may_follow_another() -> None:
    found = read_all(call("{}") + '\n{"name": "list_files", "arguments": {}}')
    assert (len(found.calls), found.text) == (2, "")


def test_several_calls_may_share_their_marks() -> None:
    one = '{"name": "list_files", "arguments": {}}'
    for between in ("\n", ", ", ""):
        start, end = ("[", "]") if between == ", " else ("", "")
        found = read_all(f"<tool_call>{start}{one}{between}{one}{end}</tool_call> b")
        assert ([name for name, _ in found.calls], found.text) == (["list_files"] * 2, "b")


def test_a_call_without_arguments_has_none() -> None:
    assert read_all('<tool_call>{"name": "list_files"}</tool_call>').calls == [("list_files", {})]


def test_an_answer_that_is_a_call_without_its_marks_is_a_call() -> None:
    assert read_all('\n{"name": "list_files", "arguments": {}}\n').calls == [("list_files", {})]
    for text in (
        '{"name": "Ada", "arguments": {}}',
        '{"name": "list_files", "size": 1}',
        'So: {"name": "list_files", "arguments": {}}',
        '{"arguments": 1}',
        "{}",
        "{",
    ):
        found = read_all(text)
        assert (found.calls, found.text, found.warnings) == ([], text, [])


@pytest.mark.parametrize("fence", ["```json\n", "```\n"])
@pytest.mark.parametrize("sizes", [(1,), (3,), ()])
def test_an_answer_that_is_a_call_in_a_fence_is_a_call(fence: str, sizes: tuple[int, ...]) -> None:
    """So write smaller models that were shown their calls in a system text."""
    call = '{"name": "write_file", "arguments": {"content": "```"}}'

    def answer(text: str) -> Told:
        return told(read(HERMES, text, FORM, sizes=sizes))

    for end in ("\n```", "```\n", "", "\n"):
        found = answer(f"{fence}{call}{end}")
        assert (found.calls, found.text.strip()) == ([("write_file", {"content": "```"})], "")
    both = answer(f"<think>Hm.</think>\n{fence}{call}\n{call}\n```\nDone.")
    assert (len(both.calls), both.text) == (2, "Done.")
    for text in (
        f'{fence}{{"name": "other", "arguments": {{}}}}\n```',
        f'{fence}{{"name": "write_file", "version": 1}}\n```',
        f"Like this:\n{fence}{call}\n```",
        f"{fence}x = {{}}\n```\n",
    ):
        found = answer(text)
        assert (found.calls, found.text, found.warnings) == ([], text, [])


def test_arguments_are_told_as_they_come() -> None:
    answer = sampled(call('{"path": "a.py", "content": "' + "x" * 400), HERMES.marks, (4,))
    output = AnswerOutput(answer.decoder(), HERMES.reader, FORM)
    lengths, told_length = [], 0
    for token in answer.ids:
        pieces = output.push([token])
        told_length += sum(len(p.json) for p in pieces if isinstance(p, CallArguments))
        lengths.append(told_length)
    steps = [b - a for a, b in zip(lengths[-90:-10], lengths[-89:-9], strict=True)]
    assert set(steps) == {4}


def test_what_no_parser_would_take_is_no_whole_call() -> None:
    assert len(read_all(call('{"a": ' * DEEPEST + "1" + "}" * DEEPEST)).calls) == 1
    for deep in ('{"a": ' * 3_000 + "1" + "}" * 3_000, '{"a": ' + "[" * 5_000):
        found = told(read(HERMES, call(deep), FORM, sizes=()))
        assert (found.calls, found.begun, len(found.warnings)) == ([], ["write_file"], 1)
    digits = "1" * 5_000
    assert read_all(call(f'{{"a": {digits}}}')).calls == [("write_file", {"a": digits})]
