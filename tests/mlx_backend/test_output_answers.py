"""Answers taken apart: thoughts, text, quoting, stop strings and calls beside each other."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mlx_backend.answers import find_answers
from mlx_backend.control import THINK_TAGS
from mlx_backend.messages import (
    AnswerForm,
    CallArguments,
    CallFinished,
    CallStarted,
    StopFound,
    TextPiece,
    ThoughtPiece,
)
from mlx_backend.output.answer_output import AnswerOutput
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.formats import AnswerFormat, answer_format, find_format
from mlx_backend.output.tape import Reading, Tape
from mlx_backend.tiny_tokenizer import TEMPLATES, make_tokenizer
from tests.mlx_backend.answers import TOOLS, made, read, sampled, told

HERMES = made("hermes", has_marks=True)
SPELLED = made("hermes", has_marks=False)
WITH_TOOLS = AnswerForm(tools=TOOLS)
CALL = '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("tags", THINK_TAGS)
@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_thought_is_what_stands_between_its_tags(tags: tuple[str, str], has_tokens: bool) -> None:
    format = answer_format(None, "", tags if has_tokens else ())
    text = f"{tags[0]}\nFirst.\n\nThen.\n{tags[1]}\n\nDone.\n"
    pieces = read(format, text, AnswerForm())
    assert pieces == [ThoughtPiece("First.\n\nThen."), TextPiece("Done.\n")]


def test_a_thought_that_the_prompt_began_ends_with_its_tag() -> None:
    form = AnswerForm(begins_in_thought=True)
    assert read(HERMES, "Well.\n</think>\n\nYes.", form) == [
        ThoughtPiece("Well."),
        TextPiece("Yes."),
    ]
    assert read(HERMES, "<think>\nWell.\n</think>Yes.", form) == [
        ThoughtPiece("Well."),
        TextPiece("Yes."),
    ]


def test_a_thought_without_an_end_is_thought_to_the_end() -> None:
    text = f"I could call {CALL} now"
    for is_cut in (True, False):
        form = AnswerForm(tools=TOOLS, begins_in_thought=True)
        assert read(HERMES, text, form, is_cut=is_cut) == [ThoughtPiece(text)]


def test_thoughts_may_come_again_and_empty_ones_are_none() -> None:
    text = "<think>\n\n</think>\n\nA <think>b</think> c<think>d</think>"
    assert read(SPELLED, text, AnswerForm()) == [
        TextPiece("A"),
        ThoughtPiece("b"),
        TextPiece("c"),
        ThoughtPiece("d"),
    ]


def test_a_closing_tag_with_nothing_to_close_is_not_shown_where_it_is_a_token() -> None:
    assert read(HERMES, "\n</think>\n\nYes.", AnswerForm()) == [TextPiece("\n\n\nYes.")]


def test_tags_spelled_by_a_model_that_has_tokens_for_them_are_text() -> None:
    """It copied them from a file, which its prompt spells so."""
    answer = sampled(f"see {CALL} and <think>", ())
    output = AnswerOutput(answer.decoder(), HERMES.reader, WITH_TOOLS)
    pieces = [piece for token in answer.ids for piece in output.push([token])]
    assert told([*pieces, *output.finish()]).text == f"see {CALL} and <think>"


def test_a_model_that_does_not_think_may_write_about_tags() -> None:
    format = find_format("{{ messages }}", ())
    assert told(read(format, "The <think> tag.", AnswerForm())).text == "The <think> tag."
    assert told(read(format, "<think>x</think>y", AnswerForm())).thought == "x"


@pytest.mark.parametrize("format", [HERMES, SPELLED], ids=["marks", "spelled"])
def test_a_call_in_thought_or_quoted_is_none(format: AnswerFormat) -> None:
    line = CALL.replace("\n", "")
    quoted = f"An example:\n```xml\n{CALL}\n```\nor `{line}` and ``{line}``.\n"
    found = told(read(format, f"<think>Like {CALL}.</think>{quoted}{CALL}", WITH_TOOLS))
    assert found.thought == f"Like {CALL}."
    assert found.text == quoted.rstrip()
    assert found.calls == [("list_files", {})]
    assert found.warnings == []


def test_code_may_begin_right_behind_a_thought() -> None:
    found = told(read(HERMES, f"So <think>x</think>```\n{CALL}\n```\n", WITH_TOOLS))
    assert (found.calls, found.text) == ([], f"So```\n{CALL}\n```\n")


@pytest.mark.parametrize("format", [HERMES, SPELLED], ids=["marks", "spelled"])
def test_a_call_in_a_fence_that_is_never_closed_is_a_call(format: AnswerFormat) -> None:
    """Models open a fence out of habit, and an agent that gets text instead waits for ever."""
    found = told(read(format, f"I look.\n```json\n{CALL}\n{CALL}", WITH_TOOLS))
    assert (found.text, found.calls) == ("I look.\n```json", [("list_files", {})] * 2)
    assert found.warnings == []
    for closed in ("```", "```\n", "  ```", "````\nSo it is.", "```\nAnd:\n```\nx\n```"):
        text = f"Like\n```\n{CALL}\n{closed}"
        assert told(read(format, text, WITH_TOOLS)).calls == []
        assert told(read(format, text, WITH_TOOLS)).text == text
    real = told(read(format, f"Like\n```\n{CALL}\n```\n```\n{CALL}", WITH_TOOLS))
    assert (real.text, len(real.calls)) == (f"Like\n```\n{CALL}\n```\n```", 1)


def test_what_is_cut_in_a_fence_is_text() -> None:
    text = f"Like\n```\n{CALL}\n"
    assert told(read(SPELLED, text, WITH_TOOLS, is_cut=True)).calls == []
    assert told(read(SPELLED, text, WITH_TOOLS, is_cut=True)).text == text


class Refusing(CallFormat):
    name = "refusing"
    openings = ("<call>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return False

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        yield from ()
        raise NotACall("no")


def test_a_call_that_is_refused_at_once_is_text_and_the_answer_goes_on() -> None:
    found = told(read(answer_format(Refusing(Spelling())), "a <call> b <call>", WITH_TOOLS))
    assert (found.text, found.warnings) == ("a <call> b <call>", ["no", "no"])


def test_what_stands_behind_code_is_no_code() -> None:
    for text in ("Look at `main.py`", "```\ncode\n```\n", "A ` alone.\n", "```a``` b\n"):
        found = told(read(HERMES, text + CALL, WITH_TOOLS))
        assert (found.text, found.calls) == (text.rstrip(), [("list_files", {})])


def test_calls_are_numbered_and_text_between_them_stays_in_its_place() -> None:
    assert read(HERMES, f"a\n{CALL}\nb\n{CALL}\n\n{CALL}\nc", WITH_TOOLS) == [
        TextPiece("a"),
        *(CallStarted(0, "list_files"), CallArguments(0, "{}"), CallFinished(0)),
        TextPiece("b"),
        *(CallStarted(1, "list_files"), CallArguments(1, "{}"), CallFinished(1)),
        *(CallStarted(2, "list_files"), CallArguments(2, "{}"), CallFinished(2)),
        TextPiece("c"),
    ]


def test_white_space_of_an_answer_without_thoughts_and_calls_is_its_own() -> None:
    assert read(HERMES, " \n a \n", AnswerForm()) == [TextPiece(" \n a \n")]
    assert read(HERMES, "\n", AnswerForm()) == [TextPiece("\n")]


def test_a_continuation_of_plain_text_has_no_thoughts_and_no_calls() -> None:
    tokenizer = make_tokenizer()
    answers = find_answers(tokenizer, TEMPLATES["thinking"])
    text = f"<think>a</think> {CALL} STOP b"
    output = answers.output(AnswerForm(stop=("STOP",), tools=TOOLS, is_raw=True))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = [piece for token in ids for piece in output.push([token])]
    found = told([*pieces, *output.finish()])
    assert (found.text, found.stop) == (f"<think>a</think> {CALL} ", "STOP")


@pytest.mark.parametrize("sizes", [(1,), (3, 2), ()])
def test_stop_strings_end_text_and_nothing_else(sizes: tuple[int, ...]) -> None:
    form = AnswerForm(stop=("END", "\n\n"), tools=TOOLS)
    call = CALL.replace("{}", '{"a": "END", "b": "x\n\ny"}')
    text = f"<think>END\n\nx</think>\nSo: {call}\nfine EN D. ENDed {call}"
    pieces = read(SPELLED, text, form, sizes=sizes)
    found = told(pieces)
    assert found.thought == "END\n\nx"
    assert found.calls == [("list_files", {"a": "END", "b": "x\n\ny"})]
    assert found.text == "So:fine EN D. "
    assert pieces[-1] == StopFound("END")


def test_a_stop_string_does_not_reach_across_a_call_or_a_thought() -> None:
    form = AnswerForm(stop=("beta gamma",), tools=TOOLS)
    pieces = read(HERMES, f"a beta {CALL} gamma", form)
    assert told(pieces).stop is None
    assert [piece.text for piece in pieces if isinstance(piece, TextPiece)] == ["a beta", "gamma"]


def test_white_space_can_be_a_stop_string_even_before_a_call() -> None:
    form = AnswerForm(stop=("\n\n",), tools=TOOLS)
    assert read(HERMES, f"a\n\n{CALL}", form) == [TextPiece("a"), StopFound("\n\n")]


def test_after_a_stop_string_nothing_comes() -> None:
    form = AnswerForm(stop=("END",), tools=TOOLS)
    answer = sampled(f"x END y {CALL} <think>z</think>", HERMES.marks, ())
    output = AnswerOutput(answer.decoder(), HERMES.reader, form)
    assert list(output.push(answer.ids)) == [TextPiece("x"), TextPiece(" "), StopFound("END")]
    assert not output.push(answer.ids)
    assert not output.finish()


def test_what_may_become_a_mark_is_text_if_it_does_not() -> None:
    for text in ("a <tool", "a <tool_cal l>", "<", "</thi", "<<tool_call", "<tool_call"):
        for is_cut in (True, False):
            found = told(read(SPELLED, text, WITH_TOOLS, is_cut=is_cut))
            assert (found.text, found.warnings) == (text, [])


@pytest.mark.parametrize("format", [HERMES, SPELLED], ids=["marks", "spelled"])
def test_characters_split_over_tokens_come_out_whole_everywhere(format: AnswerFormat) -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    call = f'<tool_call>{{"name": "write_file", "arguments": {{"path": "{family}é"}}}}</tool_call>'
    found = told(read(format, f"<think>{family}</think>{family}日{call}", WITH_TOOLS))
    assert found.thought == family
    assert found.text == family + "日"
    assert found.calls == [("write_file", {"path": family + "é"})]


def test_a_character_cut_in_an_argument_does_no_harm() -> None:
    call = '<tool_call>{"name": "write_file", "arguments": {"path": "🙂"'
    answer = sampled(call, HERMES.marks)
    for dropped in (2, 3, 4):
        output = AnswerOutput(answer.decoder(), HERMES.reader, WITH_TOOLS)
        pieces = [p for token in answer.ids[:-dropped] for p in output.push([token])]
        found = told([*pieces, *output.finish(is_cut=True)])
        assert (found.calls, found.begun) == ([], ["write_file"])


def test_a_mark_behind_a_cut_character_is_still_a_mark() -> None:
    answer = sampled("🙂" + CALL, HERMES.marks)
    output = AnswerOutput(answer.decoder(), HERMES.reader, WITH_TOOLS)
    pieces = [p for token in (*answer.ids[:2], *answer.ids[4:]) for p in output.push([token])]
    found = told([*pieces, *output.finish()])
    assert (found.text, found.calls) == ("\ufffd", [("list_files", {})])
