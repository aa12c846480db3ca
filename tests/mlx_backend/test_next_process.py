"""What an encoder learned, the next process's knows: its prompts have the same ids and marks."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mlx_backend.digests import number_of
from mlx_backend.journal import FILE_NAME, Journals
from mlx_backend.messages import Prompt, SampledTurn
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.chats import Chat, calling, echo, results
from tests.mlx_backend.template_families import FAMILIES, byte_level, encoder_of
from tests.mlx_backend.words import TOOL, Message, result, say, written

IDENTITY = "a" * 64
A_CALL = '{"path": "src/a.py","line":3}'
DATED = (
    "Today is {{ strftime_now('%d %B %Y') }}.\n"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Processes:
    """Encoders of one model, one after another, as a daemon's runs have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = datetime(2024, 5, 17, 23, 30)

    def encoder(self, family: str) -> MlxPromptEncoder:
        return encoder_of(family, lambda: self.now, notes=self.notes())

    def dated(self) -> MlxPromptEncoder:
        tokenizer = byte_level()
        vocabulary = Vocabulary(tokenizer.get_vocab_size())
        template = JinjaTemplate(DATED, {})
        return MlxPromptEncoder(
            tokenizer, template, vocabulary, lambda: self.now, notes=self.notes()
        )

    def notes(self) -> Any:
        return Journals(self.folder, lambda write: write(1 << 30) and None).of(IDENTITY)

    @property
    def file(self) -> Path:
        return self.folder / IDENTITY / FILE_NAME


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def same(one: Prompt, other: Prompt) -> bool:
    return (
        one.tokens.tolist() == other.tokens.tolist()
        and one.marks == other.marks
        and one.messages == other.messages
        and one.rendered_as == other.rendered_as
    )


def test_numbers_are_the_same_in_every_process() -> None:
    assert number_of("a", b"b", 3) == 15549521396452524990
    assert number_of("ab", "c") != number_of("a", "bc")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_history_is_encoded_as_it_was_before_the_restart(
    family: str, processes: Processes
) -> None:
    """Calls in other bytes, texts without their blanks, dropped thoughts, a cut answer."""
    talk = Chat(family, processes.encoder(family))
    turns = [
        calling(A_CALL, thought="So be it."),
        SampledTurn("\n return the print() \n"),
        calling('{"path":"b.py"}', text="I read.\n", start=1),
        SampledTurn("I return the print(self", is_cut=True),
        SampledTurn("Done."),
    ]
    talk.ask(say("system", "Be brief."), say("user", "Read it."))
    for turn in turns:
        talk.answer(turn)
        following = results(turn) or [say("user", "And?")]
        said = say("assistant", "I return the prin") if turn.is_cut else echo(turn)
        prompt = talk.ask(said, *following)
        again = Chat(family, processes.encoder(family))
        assert same(again.ask(*talk.messages), prompt)
    told = encoder_of(family).chat(talk.messages, [] if family == "mistral" else [TOOL])
    assert family in ("gemma", "mistral", "strict") or not same(told, prompt)


def test_answers_go_on_being_remembered_from_run_to_run(processes: Processes) -> None:
    messages: list[Message] = [say("user", "Read it.")]
    for step in range(4):
        talk = Chat("qwen", processes.encoder("qwen"), messages)
        before = talk.ask()
        turn = calling(A_CALL, thought=f"part {step}", start=step)
        talk.answer(turn)
        messages = [*talk.messages, echo(turn), *results(turn)]
        assert talk.goes_on(before, processes.encoder("qwen").chat(messages, [TOOL]))
    text = written(talk.encoder, processes.encoder("qwen").chat(messages, [TOOL]).tokens)
    assert [text.count(f"part {step}") for step in range(4)] == [1] * 4


def test_equal_answers_to_one_history_keep_their_order(processes: Processes) -> None:
    talk = Chat("chatml", processes.encoder("chatml"))
    for number in range(3):
        talk.messages = []
        talk.ask(say("user", "Go."))
        talk.answer(SampledTurn("Done.", f"thought {number}"))
    prompt = talk.ask(say("assistant", "Done."), say("user", "next"))
    again = processes.encoder("chatml").chat(talk.messages, [TOOL])
    assert same(again, prompt)


def test_a_conversation_keeps_the_day_on_which_it_was_opened(processes: Processes) -> None:
    opening = [say("system", "Be brief."), say("user", "Which day is it?")]
    history = [*opening, say("assistant", "Friday."), say("user", "And now?")]
    first = processes.dated().chat(opening)
    processes.now += timedelta(hours=9)
    encoder = processes.dated()
    assert encoder.chat(history).tokens.tolist()[: len(first) - 5] == first.tokens.tolist()[:-5]
    assert "17 May" in written(encoder, encoder.chat(history).tokens)
    assert "18 May" in written(encoder, encoder.chat([say("user", "Another.")]).tokens)
    assert "18 May" in written(encoder, encoder.chat(opening).tokens)
    assert "18 May" in written(processes.dated(), processes.dated().chat(history).tokens)


def test_templates_that_print_no_day_have_none_noted(processes: Processes) -> None:
    processes.encoder("chatml").chat([say("user", "Hello")])
    assert not processes.file.exists()


def test_a_tool_stays_as_it_was_first_spelled(processes: Processes) -> None:
    messages = [say("user", "Read it.")]
    first = processes.encoder("qwen").chat(messages, [TOOL])
    turned = {name: TOOL[name] for name in reversed(TOOL)}
    turned["function"] = {name: TOOL["function"][name] for name in reversed(TOOL["function"])}
    assert same(processes.encoder("qwen").chat(messages, [turned]), first)
    assert not same(encoder_of("qwen").chat(messages, [turned]), first)


def test_what_was_used_is_noted_again_after_the_notes_were_cleared(processes: Processes) -> None:
    talk = Chat("qwen", processes.encoder("qwen"))
    before = talk.ask(say("user", "Read it."))
    turn = calling(A_CALL, thought="I know.")
    talk.answer(turn)
    processes.file.unlink()
    talk.encoder.remember(talk.ask(say("user", "Other.")), [5], SampledTurn("x"))
    asked = [say("user", "Read it."), echo(turn), *results(turn)]
    assert not talk.goes_on(before, processes.encoder("qwen").chat(asked, [TOOL]))
    talk.encoder.chat(asked, [TOOL])
    assert talk.goes_on(before, processes.encoder("qwen").chat(asked, [TOOL]))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"ids": "AAAA"},
        {"ids": "!!"},
        {"ids": "AQAAAA==", "characters": -1, "digest": "", "history": 0},
        {"ids": "////fw==", "characters": 1, "digest": "00", "history": 1},
        {"tool": "["},
        {"tool": "[" * 100_000},
        {"day": "never", "conversation": 1},
        {"day": 3},
    ],
)
def test_notes_that_say_something_else_are_passed_over(
    value: dict[str, Any], processes: Processes
) -> None:
    for name, kind in enumerate(("answer", "tool", "day", "other")):
        processes.notes().add(kind, name, lambda: value)
    encoder = processes.encoder("qwen")
    messages = [say("user", "Hello")]
    assert same(encoder.chat(messages), encoder_of("qwen").chat(messages))


def test_an_answer_of_ids_that_the_vocabulary_lacks_is_forgotten(processes: Processes) -> None:
    talk = Chat("chatml", processes.encoder("chatml"))
    prompt = talk.ask(say("user", "Hello"))
    talk.encoder.remember(prompt, [10**6], SampledTurn("hi"))
    again = processes.encoder("chatml")
    told = [say("user", "Hello"), say("assistant", "hi"), result("x", "y"), say("user", "a")]
    assert again.chat(told).tokens.tolist() == encoder_of("chatml").chat(told).tokens.tolist()
