"""Llama's, Mistral's, Python's and Harmony's ways to write answers, and whose way a model has."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from mlx_backend.answers import find_answers
from mlx_backend.messages import AnswerForm, CallFinished, TextPiece, ThoughtPiece
from mlx_backend.output.answer_output import AnswerOutput
from mlx_backend.output.formats import find_format
from mlx_backend.tiny_tokenizer import make_tokenizer
from tests.mlx_backend.answers import TOOLS, Told, made, read, sampled, told
from tests.mlx_backend.template_families import FAMILIES

FORM = AnswerForm(tools=TOOLS)
WRITE: tuple[str, Any] = ("write_file", {"path": "a", "mode": 1})
LIST: tuple[str, Any] = ("list_files", {})


def read_as(name: str, text: str, *, is_cut: bool = False) -> Told:
    """Checks on the way that tokens make no difference."""
    found = None
    for has_marks in (True, False):
        format = made(name, has_marks=has_marks)
        pieces = read(format, text, FORM, is_cut=is_cut)
        assert read(format, text, FORM, is_cut=is_cut, sizes=()) == pieces
        assert found in (None, told(pieces))
        found = told(pieces)
    assert found is not None
    return found


def test_llama_calls_with_a_whole_answer() -> None:
    write = '{"name": "write_file", "parameters": {"path": "a", "mode": 1}}'
    found = read_as("llama", f'{write}; {{"name": "list_files", "parameters": {{}}}}')
    assert (found.calls, found.text) == ([WRITE, LIST], "")
    assert read_as("llama", f"\n\n<|python_tag|>{write}").calls == [WRITE]
    assert read_as("llama", f"Well. <|python_tag|>{write}").calls == [WRITE]
    assert read_as("llama", f"Like this: {write}").calls == []
    assert read_as("llama", f"{write}; then more").text == "; then more"


def test_llama_calls_in_pythons_syntax_and_in_tags() -> None:
    found = read_as("llama", '[write_file(path="a", mode=1), list_files()]')
    assert (found.calls, found.text) == ([WRITE, LIST], "")
    assert read_as("llama", '<|python_start|>[write_file("a", mode=1)]<|python_end|>').calls == [
        WRITE
    ]
    assert read_as("llama", '<|python_tag|>write_file.call(path="a", mode=1)').calls == [WRITE]
    tagged = read_as("llama", 'a <function=write_file>{"path": "a", "mode": 1}</function> b')
    assert (tagged.calls, tagged.text) == ([WRITE], "ab")


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[a link](list_files())", '{"a": 1}', "[other(1)]", "[", "{", "[]", "[list"]
)
def test_llama_answers_that_only_look_like_calls_are_text(text: str) -> None:
    for is_cut in (True, False):
        found = read_as("llama", text, is_cut=is_cut)
        assert (found.text, found.calls, found.warnings) == (text, [], [])


def test_code_for_an_interpreter_is_text_where_that_is_no_tool() -> None:
    found = read_as("llama", "<|python_tag|>print(1)")
    assert (found.calls, found.text) == ([], "<|python_tag|>print(1)")


def test_values_in_python_become_json() -> None:
    text = (
        r"<|tool_call_start|>[write_file(path='it\'s \x41\u00e9\\', "
        'content="""two\n"lines""", '
        "mode=0o7, tags=[('a', True), {'b': None, \"c\": false}])]<|tool_call_end|> b"
    )
    arguments = {
        "path": "it's Aé\\",
        "content": 'two\n"lines',
        "mode": "0o7",
        "tags": [["a", True], {"b": None, "c": False}],
    }
    found = read_as("pythonic", text)
    assert (found.calls, found.text) == ([("write_file", arguments)], "b")


def test_python_calls_that_are_none_are_text() -> None:
    for text in ("[write_file]", "write_file", "[]", "[write_file{}]", ""):
        whole = f"<|tool_call_start|>{text}<|tool_call_end|>"
        found = read_as("pythonic", f"{whole} <|tool_call_start|>[list_files()]<|tool_call_end|>")
        assert (found.calls, found.text, len(found.warnings)) == ([LIST], whole, 1)


def test_a_python_call_without_its_end() -> None:
    start = "<|tool_call_start|>[write_file(path='a', mode=1"
    for end in ("", ")", ")]"):
        assert read_as("pythonic", start + end).calls == [WRITE]
    assert read_as("pythonic", start, is_cut=True).begun == ["write_file"]
    assert read_as("pythonic", start + ")", is_cut=True).calls == [WRITE]
    assert read_as("pythonic", "<|tool_call_start|>[write_file(path='a").begun == ["write_file"]


def test_mistral_lists_its_calls() -> None:
    text = (
        'So: [TOOL_CALLS] [{"name": "write_file", "arguments": {"path": "a", "mode": 1}, '
        '"id": "abc123def"}, {"name": "list_files", "arguments": "{}"}] b'
    )
    found = read_as("mistral", text)
    assert (found.calls, found.text) == ([WRITE, LIST], "So:b")


def test_mistral_names_its_calls() -> None:
    write = 'write_file[ARGS]{"path": "a", "mode": 1}'
    for text in (
        f"[TOOL_CALLS]{write}[TOOL_CALLS]list_files[CALL_ID]abc123[ARGS]{{}}",
        f"[TOOL_CALLS]{write}list_files[ARGS]{{}}",
        f"[TOOL_CALLS] {write}\nlist_files [ARGS] {{}}",
    ):
        assert read_as("mistral", text).calls == [WRITE, LIST]
    found = read_as("mistral", f"[TOOL_CALLS]{write} Done, as you see.")
    assert (found.calls, found.text, found.warnings) == ([WRITE], "Done, as you see.", [])


def test_mistral_calls_that_are_none_are_text() -> None:
    for text in ("[TOOL_CALLS]write_file", "[TOOL_CALLS]write_file {}", "[TOOL_CALLS] 1 b"):
        found = read_as("mistral", text)
        assert (found.text, found.calls, len(found.warnings)) == (text, [], 1)


ANALYSIS = "<|channel|>analysis<|message|>Hm. <tool_call>?<|end|><|start|>assistant"
TO_WRITE = "<|channel|>commentary to=functions.write_file"
ARGUMENTS = '{"path": "a", "mode": 1}'


def test_harmony_is_taken_apart_by_its_channels() -> None:
    preamble = "<|channel|>commentary<|message|>I write.<|end|><|start|>assistant"
    text = f"{ANALYSIS}{preamble}{TO_WRITE} <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    found = read_as("harmony", text)
    assert (found.thought, found.text, found.calls) == ("Hm. <tool_call>?", "I write.", [WRITE])
    final = f"{ANALYSIS}<|channel|>final<|message|>Done.<|return|>"
    assert read(made("harmony", has_marks=True), final, FORM) == [
        ThoughtPiece("Hm. <tool_call>?"),
        TextPiece("Done."),
    ]


@pytest.mark.parametrize(
    "header",
    [
        f"{TO_WRITE}<|message|>",
        f"{TO_WRITE} <|constrain|>json<|message|>",
        f"{TO_WRITE}<|channel|>commentary<|constrain|>json<|message|>",
        f"{TO_WRITE}commentary json<|message|>",
        " to=functions.write_file<|channel|>commentary json<|message|>",
        " to=write_file<|channel|>commentary<|message|>",
        "<|start|>assistant to=functions.write_file<|channel|>analysis<|message|>",
        "<|channel|>commentary to=functions.write_file code<|message|>",
    ],
)
def test_a_name_in_harmony_is_found_in_whatever_header(header: str) -> None:
    found = read_as("harmony", f"{header}{ARGUMENTS}<|call|>")
    assert (found.calls, found.text, found.warnings) == ([WRITE], "", [])


def test_the_end_of_the_turn_is_the_end() -> None:
    text = f"{TO_WRITE}<|message|>{ARGUMENTS}<|call|><|start|>assistant{TO_WRITE}<|message|>x"
    found = read_as("harmony", text)
    assert (found.calls, found.text) == ([WRITE], "")
    assert read_as("harmony", "<|channel|>final<|message|>a<|return|>b").text == "a"


def test_a_call_in_harmony_whose_end_is_the_answers_end() -> None:
    """The token that ends the turn is not shown to whoever reads the answer."""
    assert read_as("harmony", f"{TO_WRITE}<|message|>{ARGUMENTS}").calls == [WRITE]
    assert read_as("harmony", f"{TO_WRITE}<|message|>{ARGUMENTS[:-1]}").calls == [WRITE]
    listing = "<|channel|>commentary to=functions.list_files<|message|>"
    assert read_as("harmony", listing).calls == [LIST]
    assert read_as("harmony", listing, is_cut=True).calls == []
    assert read_as("harmony", f"{TO_WRITE}<|message|>{ARGUMENTS[:-1]}", is_cut=True).calls == []


def test_messages_of_text_in_harmony_do_not_run_together() -> None:
    text = "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
    assert read_as("harmony", text).text == "a\n\nb"


def test_no_markup_of_harmony_shows_whatever_it_is() -> None:
    for text in (
        f"{TO_WRITE}<|message|>no JSON<|call|>",
        "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
        "<|channel|>analysis to=python<|message|>print(1)<|call|>",
        "<|channel|>final<|channel|>final<|message|>a<|message|>b<|end|>",
        "plain<|end|><|start|>assistant<|channel|>",
        "<|message|>a<|start|><|start|><|end|>",
        "<|constrain|>json<|message|>{}",
        TO_WRITE,
    ):
        for is_cut in (True, False):
            found = read_as("harmony", text, is_cut=is_cut)
            assert "functions" not in found.text + found.thought
            assert "<|" not in found.text
            assert found.calls == []
    assert read_as("harmony", "No channels at all.").text == "No channels at all."
    inner = read_as("harmony", "<|channel|>analysis to=python<|message|>print(1)<|call|>")
    assert (inner.thought, inner.text) == ("print(1)", "")


def test_a_cut_thought_in_harmony_is_thought() -> None:
    found = read_as("harmony", "<|channel|>analysis<|message|>Well, <|en", is_cut=True)
    assert (found.thought, found.text) == ("Well, <|en", "")


def test_a_family_may_have_marks_of_its_own_for_thoughts_and_text() -> None:
    text = (
        "<|START_THINKING|>I plan.<|END_THINKING|><|START_RESPONSE|>So.<|END_RESPONSE|>"
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "list_files", "parameters": {}}]'
        "<|END_ACTION|>"
    )
    found = read_as("command", text)
    assert (found.thought, found.text, found.calls) == ("I plan.", "So.", [LIST])


@pytest.mark.parametrize(
    ("family", "name"),
    [("harmony", "harmony"), ("llama", "llama"), ("mistral", "mistral"), ("qwen", "hermes")],
)
def test_a_familys_way_is_found_by_its_template(family: str, name: str) -> None:
    assert find_format(FAMILIES[family].source, ()).name == name


def test_where_the_template_says_nothing_the_tokens_do() -> None:
    assert find_format("{{ messages }}", ("[TOOL_CALLS]",)).name == "mistral"
    assert find_format("{{ messages }}", ("<|tool_call_start|>",)).name == "pythonic"
    assert find_format("{{ messages }}", ("<tool_call>", "</tool_call>")).name == "hermes"
    assert find_format("{{ messages }}", ("<|python_tag|>",)).name == "llama"
    assert find_format("{{ messages }}", ()).name == "text"


def test_a_models_marks_are_those_tokens_that_its_way_to_write_has() -> None:
    tokenizer = _with("<tool_call>", "</tool_call>", "<think>", "[TOOL_CALLS]")
    answers = find_answers(tokenizer, "<tool_call>")
    opening = tokenizer.token_to_id("<tool_call>")
    assert answers.call_mark_ids == {opening}
    assert set(answers.marks.values()) == {"<tool_call>", "</tool_call>", "<think>", "</think>"}
    marks = made("harmony", has_marks=True).marks
    harmony = find_answers(_with(*marks), FAMILIES["harmony"].source)
    assert {harmony.marks[id] for id in harmony.ending_ids} == {"<|return|>", "<|call|>"}
    assert not harmony.call_mark_ids


def test_a_model_whose_template_knows_no_tools_writes_calls_as_it_is_told_to() -> None:
    assert find_answers(make_tokenizer(), "{{ messages }}").format.name == "hermes"
    told_to = find_answers(_with("[TOOL_CALLS]"), "{{ messages }}", shows_tools=False)
    assert told_to.format.name == "hermes"


def _with(*special: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(make_tokenizer().to_str())
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def test_a_call_is_finished_with_the_last_character_that_it_needs() -> None:
    """So that whoever wants one call only need not wait for what closes it."""
    for name, text in (
        ("hermes", '<tool_call>{"name": "list_files", "arguments": {}'),
        ("mistral", "[TOOL_CALLS]list_files[ARGS]{}"),
        ("llama", '<|python_tag|>{"name": "list_files", "parameters": {}'),
        ("harmony", "<|channel|>commentary to=functions.list_files<|message|>{}"),
        ("pythonic", "<|tool_call_start|>[list_files()"),
    ):
        format = made(name, has_marks=True)
        answer = sampled(text, format.marks)
        output = AnswerOutput(answer.decoder(), format.reader, FORM)
        pieces = [piece for token in answer.ids for piece in output.push([token])]
        assert pieces[-1] == CallFinished(0)
