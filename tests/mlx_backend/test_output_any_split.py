"""Every family's way to write answers: in whatever tokens they come, the pieces are the same."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_backend.messages import AnswerForm
from mlx_backend.output.formats import AnswerFormat
from tests.mlx_backend.answers import NAMES, TOOLS, made, read, told, written

FORM = AnswerForm(stop=("STOP", "\n\nHuman"), tools=TOOLS)
CONTENT = 'say "hi" to\nthe \\d+ 👩‍👧 é </tool_call> <tool_call> {a} ]\n'
ARGUMENTS = {"path": "src/a.py", "content": CONTENT, "mode": 644, "tags": ["x", "y z"]}
CALLS = (("write_file", ARGUMENTS), ("list_files", {}))
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@cache
def known(name: str, *, has_marks: bool) -> AnswerFormat:
    return made(name, has_marks=has_marks)


def answer(name: str) -> str:
    """Thoughts, text and two calls, as far as the family can say them."""
    calls = written(name, *CALLS)
    if name == "harmony":
        calls = written(name, CALLS[0])
        return f"<|channel|>analysis<|message|>Think.<|end|><|start|>assistant{calls}"
    return f"<think>\nThink: {calls}\n</think>\n\nI write.\n\n{calls}"


@pytest.mark.parametrize("has_marks", [True, False], ids=["marks", "spelled"])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_read_as_it_was_meant(name: str, has_marks: bool) -> None:
    found = told(read(known(name, has_marks=has_marks), answer(name), FORM))
    calls = list(CALLS if name != "harmony" else CALLS[:1])
    if name != "harmony":
        assert found.text == "I write."
        assert found.thought.startswith("Think: ")
    assert found.calls == calls
    assert (found.begun, found.warnings, found.stop) == ([], [], None)


@pytest.mark.parametrize("has_marks", [True, False], ids=["marks", "spelled"])
@pytest.mark.parametrize("name", NAMES)
def test_streamed_is_collected_whatever_the_tokens(name: str, has_marks: bool) -> None:
    format = known(name, has_marks=has_marks)
    whole = read(format, answer(name), FORM, sizes=())

    @settings(max_examples=8, deadline=None)
    @given(SIZES)
    def check(sizes: list[int]) -> None:
        assert read(format, answer(name), FORM, sizes=sizes) == whole

    check()


FRAGMENTS = st.sampled_from(
    ["<think>", "</think>", "`", "```", "\n", " ", "STOP", "ST", "{", "}", '"', "\\", "[", ",",
     ":", "é", "name", "write_file", "arguments", "<", ">", "</", "=", "(", ")", "x", "1", "null",
     "\U0001f642"]
)  # fmt: skip


@pytest.mark.parametrize("has_marks", [True, False], ids=["marks", "spelled"])
@pytest.mark.parametrize("name", NAMES)
def test_damaged_answers_do_no_harm_and_are_the_same_in_any_tokens(
    name: str, has_marks: bool
) -> None:
    """Pieces of a call in any order, with anything between: nothing is raised, whole calls have
    JSON objects, what is said does not depend on the tokens, and nothing of it is lost."""
    format = known(name, has_marks=has_marks)
    call = written(name, ("write_file", {"path": "a", "mode": 1}))
    cuts = st.integers(0, len(call))
    parts = st.one_of(FRAGMENTS, st.tuples(cuts, cuts).map(lambda at: call[min(at) : max(at)]))
    texts = st.lists(parts, min_size=1, max_size=6).map("".join)

    @settings(max_examples=25, deadline=None)
    @given(texts, SIZES, st.booleans())
    def check(text: str, sizes: list[int], is_cut: bool) -> None:
        whole = read(format, text, FORM, sizes=(), is_cut=is_cut)
        assert read(format, text, FORM, sizes=sizes, is_cut=is_cut) == whole
        found = told(whole)
        assert all(isinstance(arguments, dict) for _, arguments in found.calls)
        has_structure = has_marks or name in ("harmony", "kimi-k3", "command", "llama")
        if not (has_structure or found.calls or found.begun or "think>" in text):
            assert found.text == (text if found.stop is None else text.partition(found.stop)[0])

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_call_cut_anywhere_is_never_called_whole(name: str) -> None:
    format = known(name, has_marks=True)
    call = written(name, ("write_file", {"path": "src/a.py", "content": "abc"}))
    for length in range(call.index("abc") + 1):
        found = told(read(format, call[:length], AnswerForm(tools=TOOLS), is_cut=True, sizes=()))
        assert found.calls == []


@pytest.mark.parametrize("name", NAMES)
def test_without_tools_the_markup_of_calls_is_text(name: str) -> None:
    call = written(name, ("write_file", {"path": "a"}))
    found = told(read(known(name, has_marks=True), call, AnswerForm()))
    assert (found.calls, found.begun) == ([], [])
    if name != "harmony":
        assert found.text == call
    assert "path" in found.text


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_tool_is_no_call_and_what_was_said_is_text(name: str) -> None:
    call = written(name, ("delete_all", {"path": "a"}))
    found = told(read(known(name, has_marks=True), call, AnswerForm(tools=TOOLS)))
    assert (found.calls, found.begun) == ([], [])
    assert "path" in found.text
    if name not in ("llama", "tool-code"):  # these have calls without marks: any list, any fence
        assert any("delete_all" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_told_as_they_are_sampled(name: str) -> None:
    """Before the call ends, all of a long string but its last few characters."""
    format = known(name, has_marks=True)
    content = "line of a file\n" * 200
    call = written(name, ("write_file", {"path": "a", "content": content}))
    begun = call[: call.rindex("line") + 4]
    pieces = read(format, begun, AnswerForm(tools=TOOLS), is_cut=True)
    told_so_far = "".join(getattr(piece, "json", "") for piece in pieces)
    assert len(told_so_far) > len(json.dumps(content)) - 60
