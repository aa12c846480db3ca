"""A prompt that goes on from an answer has its ids as they were sampled, not the client's bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mlx_backend.messages import Prompt, SampledTurn, token_ids
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.chats import Chat, calling, chat, echo, results, spoken
from tests.mlx_backend.template_families import (
    CHATML_TOKENS,
    FAMILIES,
    encoder_of,
    sentencepiece,
)
from tests.mlx_backend.words import TOOL, common, control_counts, result, say, written

A_CALL = '{"path": "src/a.py","line":3}'
GOES_ON = [family for family in FAMILIES if family != "empty thinking"]


@pytest.mark.parametrize("family", GOES_ON)
def test_a_call_echoed_in_other_bytes_keeps_the_ids_it_was_sampled_with(family: str) -> None:
    """A5."""
    talk = chat(family)
    before = talk.ask(say("system", "Be brief."), say("user", "Read it."))
    turn = calling(A_CALL, thought="So be it." if family == "qwen thinking" else "")
    text = spoken(family, turn)
    talk.answer(turn, "\n\n" + text if text.startswith("<tool_call>") else text)
    prompt = talk.ask(echo(turn), *results(turn))
    assert talk.goes_on(before, prompt)
    assert "the file" in written(talk.encoder, prompt.tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_came_back_changed_is_what_the_client_says(family: str) -> None:
    """A5, the second echo."""
    talk = chat(family)
    talk.ask(say("user", "Read it."))
    turn = calling(A_CALL)
    talk.answer(turn)
    changed = echo(turn)
    changed["tool_calls"][0]["function"]["arguments"] = '{"line":4,"path":"src/a.py"}'
    prompt = talk.ask(changed, *results(turn))
    told = encoder_of(family).chat(talk.messages, [] if family == "mistral" else [TOOL])
    assert prompt.tokens.tolist() == told.tokens.tolist()
    text = written(talk.encoder, prompt.tokens)
    assert "4" in text
    assert "3" not in text.replace("<0x33>", "")


@pytest.mark.parametrize("family", GOES_ON)
def test_a_text_whose_outer_blanks_were_lost_keeps_its_ids(family: str) -> None:
    talk = chat(family)
    before = talk.ask(say("user", "Hello?"))
    turn = SampledTurn("\n return the print() \n")
    talk.answer(turn)
    prompt = talk.ask(say("assistant", "return the print()"), say("user", "And?"))
    if family in ("qwen thinking",):  # its history opens without the think block of the tail
        assert not talk.goes_on(before, prompt)
    else:
        assert talk.goes_on(before, prompt)
    text = written(talk.encoder, prompt.tokens)
    assert text.index("return the print()") < text.index("And?")


KEEP_THOUGHTS = ["chatml", "qwen", "qwen thinking", "glm", "harmony"]


@pytest.mark.parametrize("family", KEEP_THOUGHTS)
def test_a_thought_that_the_client_dropped_comes_back_in_a_tool_loop(family: str) -> None:
    """H11."""
    talk = chat(family)
    prompts = [talk.ask(say("user", "Read it."))]
    for step in range(3):
        turn = calling(A_CALL, thought=f"I need part {step}.", start=step)
        talk.answer(turn)
        prompts.append(talk.ask(echo(turn), *results(turn)))
        assert talk.goes_on(prompts[-2], prompts[-1])
    text = written(talk.encoder, prompts[-1].tokens)
    assert [text.count(f"I need part {step}.") for step in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("family", ["chatml", "qwen"])
@pytest.mark.parametrize("thought", ["<think></think>", "<think>\n\n</think>\n\n"])
def test_a_thought_without_words_costs_nothing_of_the_answer_behind_it(
    family: str, thought: str
) -> None:
    """Models that were told not to think write one; histories leave it out."""
    talk = chat(family)
    last = talk.ask(say("user", "Read it."))
    for turn in (calling(A_CALL), SampledTurn("There it is.")):
        talk.answer(turn, thought + spoken(family, turn))
        following = results(turn) or [say("user", "And?")]
        prompt = talk.ask(echo(turn), *following)
        assert talk.goes_on(last, prompt)
        last = prompt


@pytest.mark.parametrize("family", FAMILIES)
def test_thoughts_that_a_template_drops_stay_dropped_and_cost_no_more_than_themselves(
    family: str,
) -> None:
    """A4."""
    talk = chat(family)
    last = talk.ask(say("system", "Be brief."), say("user", "Question 0"))
    for step in range(3):
        talk.answer(SampledTurn(f"Answer {step}.", f"A long thought {step}."))
        prompt = talk.ask(say("assistant", f"Answer {step}."), say("user", f"Question {step + 1}"))
        assert common(prompt, last) >= last.marks.last_user_end
        assert "long thought" not in written(talk.encoder, prompt.tokens) or family == "chatml"
        assert talk.goes_on(last, prompt) == (family == "chatml")
        last = prompt


def test_foreign_reasoning_is_rendered_as_the_client_sent_it() -> None:
    """H11."""
    talk = chat("qwen")
    talk.ask(say("user", "Read it."))
    turn = calling(A_CALL, thought="My own thought.")
    talk.answer(turn)
    prompt = talk.ask(echo(turn, reasoning_content="Another model's."), *results(turn))
    text = written(talk.encoder, prompt.tokens)
    assert "Another model's." in text
    assert "My own thought." not in text


def test_reasoning_that_came_back_is_known_again() -> None:
    talk = chat("qwen")
    before = talk.ask(say("user", "Read it."))
    turn = calling(A_CALL, thought="First.\n\nThen.")
    talk.answer(turn)
    prompt = talk.ask(echo(turn, reasoning="\nFirst.\nThen. "), *results(turn))
    assert talk.goes_on(before, prompt)


@pytest.mark.parametrize("family", ["chatml", "qwen", "qwen coder", "gemma", "glm", "strict"])
def test_several_calls_and_a_text_before_them_are_one_answer(family: str) -> None:
    talk = chat(family)
    before = talk.ask(say("user", "Read them."))
    turn = calling(A_CALL, '{"path":"b.py"}', text="I read both.\n\n")
    talk.answer(turn)
    renamed = echo(turn)
    for call in renamed["tool_calls"]:
        call["id"] = call["id"].replace("call_", "toolu_")
    answers = [result("the file", call["id"]) for call in renamed["tool_calls"]]
    assert talk.goes_on(before, talk.encoder.chat([*talk.messages, renamed, *answers], [TOOL]))
    assert talk.goes_on(before, talk.ask(echo(turn), *results(turn)))


def test_a_text_around_calls_comes_back_joined_from_its_blocks() -> None:
    talk = chat("chatml")
    before = talk.ask(say("user", "Read it."))
    turn = calling(A_CALL, text="I read.That was it.")
    talk.answer(turn, "I read." + spoken("chatml", calling(A_CALL)) + "That was it.")
    prompt = talk.ask(echo(turn, content="I read.\nThat was it."), *results(turn))
    assert talk.goes_on(before, prompt)


def test_equal_numbers_are_equal_and_truth_is_no_number() -> None:
    talk = chat("chatml")
    before = talk.ask(say("user", "Do it."))
    turn = calling('{"wait": 3.0, "all": true}')
    talk.answer(turn)
    for told, is_same in (
        ('{"all":true,"wait":3}', True),
        ('{"all":1,"wait":3}', False),
        ('{"all":true,"wait":3.5}', False),
    ):
        message = echo(turn)
        message["tool_calls"][0]["function"]["arguments"] = told
        prompt = talk.encoder.chat([*talk.messages, message, *results(turn)], [TOOL])
        assert talk.goes_on(before, prompt) == is_same


def test_equal_answers_of_different_conversations_keep_their_own_thoughts() -> None:
    encoder = encoder_of("chatml")
    talks = [Chat("chatml", encoder), Chat("chatml", encoder)]
    for number, talk in enumerate(talks):
        talk.ask(say("user", f"Question {number}"))
        talk.answer(SampledTurn("Done.", f"thought {number}"))
    for number, talk in enumerate(talks):
        before = talk.prompt
        prompt = talk.ask(say("assistant", "Done."), say("user", "next"))
        assert before is not None
        assert talk.goes_on(before, prompt)
        assert f"thought {1 - number}" not in written(encoder, prompt.tokens)


# Answers that a client cut short


def cut(text: str, thought: str = "") -> SampledTurn:
    return SampledTurn(text, thought, is_cut=True)


@pytest.mark.parametrize("family", GOES_ON)
@pytest.mark.parametrize("seen", ["I return the print", "I return the prin", "I ret", "I"])
def test_what_the_client_saw_of_an_answer_keeps_its_ids(family: str, seen: str) -> None:
    talk = chat(family)
    before = talk.ask(say("user", "Go."))
    talk.answer(cut("I return the print(self"))
    prompt = talk.ask(say("assistant", seen), say("user", "Go on."))
    text = written(talk.encoder, prompt.tokens)
    assert "print(self" not in text
    assert f"{seen}" in text[: text.rindex("Go on.")]
    known = common(prompt, Prompt(token_ids([*before.tokens, *talk.sampled]))) - len(before)
    if family == "qwen thinking":  # its history opens without the think block of the tail
        assert known < 0
    else:
        said = [written(talk.encoder, talk.sampled[:i]) for i in range(len(talk.sampled))]
        assert known == max(
            i for i, t in enumerate(said) if spoken(family, cut(seen)).startswith(t)
        )


def test_a_word_that_the_client_adds_to_a_cut_answer_comes_behind_it() -> None:
    talk = chat("chatml")
    before = talk.ask(say("user", "Go."))
    talk.answer(cut("I return é🙂"))
    prompt = talk.ask(say("assistant", "I return é🙂\n[interrupted]"), say("user", "Go on."))
    assert talk.goes_on(before, prompt)
    assert "I return é🙂\n[interrupted]<|im_end|>" in written(talk.encoder, prompt.tokens)


def test_a_call_that_was_cut_and_not_told_leaves_the_text_before_it() -> None:
    talk = chat("chatml")
    before = talk.ask(say("user", "Go."))
    talk.answer(cut("I read.\n"), 'I read.\n<tool_call>\n{"name": "re')
    prompt = talk.ask(say("assistant", "I read."), say("user", "Go on."))
    text = written(talk.encoder, prompt.tokens)
    assert "assistant\nI read.\n<|im_end|>" in text
    known = common(prompt, Prompt(token_ids([*before.tokens, *talk.sampled]))) - len(before)
    assert written(talk.encoder, talk.sampled[:known]) == "I read.\n"


def test_a_cut_thought_goes_on_where_it_was_cut() -> None:
    talk = chat("qwen")
    before = talk.ask(say("user", "Go."))
    talk.answer(cut("", "First I return the"), "<think>\nFirst I return the")
    seen = say("assistant", "", reasoning_content="First I return")
    prompt = talk.ask(seen, say("system", "Be quick."))
    text = written(talk.encoder, prompt.tokens)
    assert "<think>\nFirst I return\n</think>" in text
    ids = [*before.tokens, *talk.sampled]
    assert common(prompt, Prompt(token_ids(ids))) == len(ids) - 1  # all but " the"


def test_a_cut_never_ends_within_a_character_or_a_control_token() -> None:
    talk = chat("chatml")
    before = talk.ask(say("user", "Go."))
    talk.answer(cut("a\U0001f642b"))
    prompt = talk.ask(say("assistant", "a\U0001f643"), say("user", "Go on."))  # three bytes alike
    ids = prompt.tokens.tolist()
    assert ids[len(before) : len(before) + 1] == talk.sampled[:1]
    assert "assistant\na\U0001f643<|im_end|>" in written(talk.encoder, ids)
    talk = chat("chatml")
    talk.ask(say("user", "Go."))
    talk.answer(cut("a<|im_<|"), "a<|im_")
    prompt = talk.ask(say("assistant", "a"), say("user", "Go on."))
    assert "assistant\na<|im_end|>" in written(talk.encoder, prompt.tokens)
    assert control_counts(talk.encoder, prompt)["<|im_end|>"] == 4


# Other sessions, other encoders, many at once


def test_an_answer_is_found_by_whoever_goes_on_from_it() -> None:
    talk = chat("qwen")
    talk.ask(say("user", "Read it."))
    for step in range(3):
        turn = calling(A_CALL, thought=f"part {step}", start=step)
        talk.answer(turn)
        whole = talk.ask(echo(turn), *results(turn))
    fork = talk.encoder.chat([*talk.messages[:-3], say("user", "Stop.")], [TOOL])
    again = talk.encoder.chat(talk.messages, [TOOL])
    assert again.tokens.tolist() == whole.tokens.tolist()
    assert again.marks == whole.marks
    assert again.messages == whole.messages
    assert "part 1" not in written(talk.encoder, fork.tokens)


def test_marks_and_places_are_those_of_the_spliced_ids() -> None:
    talk = chat("qwen")
    talk.ask(say("system", "Be brief."), say("user", "Read it."))
    for step in range(3):
        turn = calling(A_CALL, thought=f"part {step}", start=step)
        talk.answer(turn, "\n\n\n" + spoken("qwen", turn))
        prompt = talk.ask(echo(turn), *results(turn))
        done = [say("assistant", "done"), say("user", "next")]
        after = talk.encoder.chat([*talk.messages, *done], [TOOL])
        assert prompt.marks.last_user_end == common(prompt, after)
        assert prompt.marks.stable_end == len(prompt)
    offsets = [start.offset for start in prompt.messages]
    assert offsets == sorted(offsets)
    for start, end in zip(prompt.messages, [*offsets[1:], len(prompt)], strict=True):
        text = written(talk.encoder, prompt.tokens[start.offset : end])
        told = {"system": "Be brief", "user": "Read it", "tool": "the file"}
        assert told.get(start.role, "src/a.py") in text


@pytest.mark.parametrize("scheme", ["first", "legacy", "never"])
def test_tokenizers_that_put_blanks_before_words_take_answers_too(scheme: str) -> None:
    tokenizer = sentencepiece(scheme)
    source = FAMILIES["chatml"].source
    template = JinjaTemplate(source, {"bos_token": CHATML_TOKENS[0]})
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    talk = Chat("chatml", encoder)
    before = talk.ask(say("user", "Read it."))
    turn = calling(A_CALL, text="I read.\n")
    talk.answer(turn)
    prompt = talk.ask(echo(turn), *results(turn))
    assert talk.goes_on(before, prompt)
    fresh = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    told = fresh.chat(talk.messages, [TOOL]).tokens.tolist()
    count = len(told) - told[::-1].index(tokenizer.token_to_id("</tool_call>"))
    assert prompt.tokens.tolist()[count - len(told) :] == told[count:]


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    encoder = encoder_of("chatml", remembered_bytes=200_000)
    talks = []
    for number in range(100):
        talk = Chat("chatml", encoder)
        before = talk.ask(say("user", f"Question {number}"))
        talk.answer(SampledTurn("x" * 1000), "\n" + "x" * 1000)
        talks.append((talk, before))
    asked = [say("assistant", "x" * 1000), say("user", "next")]
    known = [talk.goes_on(before, talk.ask(*asked)) for talk, before in talks]
    assert known[-10:] == [True] * 10
    assert known[:50] == [False] * 50


def test_many_threads_may_remember_and_recall_at_once() -> None:
    encoder = encoder_of("qwen")

    def converse(number: int) -> bool:
        talk = Chat("qwen", encoder)
        prompt = talk.ask(say("user", f"Question {number % 5}"))
        goes_on = True
        for step in range(4):
            turn = calling(A_CALL, thought=f"{number}, {step}", start=100 * number + step)
            talk.answer(turn)
            before, prompt = prompt, talk.ask(echo(turn), *results(turn))
            goes_on = goes_on and talk.goes_on(before, prompt)
        return goes_on

    with ThreadPoolExecutor(25) as threads:
        assert all(threads.map(converse, range(50)))


def test_nothing_is_remembered_of_plain_text_or_of_silence() -> None:
    encoder = encoder_of("chatml")
    prompt = encoder.text("abc")
    encoder.remember(prompt, [1, 2], SampledTurn("x"))
    prompt = encoder.chat([say("user", "a")])
    encoder.remember(prompt, [], SampledTurn(""))
    told = [say("user", "a"), say("assistant", ""), say("user", "b")]
    assert encoder.chat(told).tokens.tolist() == encoder_of("chatml").chat(told).tokens.tolist()
