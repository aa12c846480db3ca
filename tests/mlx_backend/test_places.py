"""Where each message of a request begins in its prompt: what it says lies within its bounds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_backend.messages import MessageStart, Prompt, token_ids
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import FunctionTemplate, JinjaTemplate
from tests.mlx_backend.template_families import (
    CHATML_TOKENS,
    FAMILIES,
    byte_level,
    encoder_of,
    sentencepiece,
)
from tests.mlx_backend.words import TOOL, Message, call, result, say, written

ENCODERS = {family: encoder_of(family) for family in FAMILIES}
WORDS = ["user", "a", "<|im_end|>", "im_start", "é", " ", "\n", "system", "1", "<think>", "ß🙂"]


def parts(encoder: MlxPromptEncoder, prompt: Prompt) -> dict[int, str]:
    """What lies between one message's beginning and the next one's, by the client's index."""
    offsets = [start.offset for start in prompt.messages]
    ends = [*offsets[1:], len(prompt)]
    assert offsets == sorted(offsets)
    return {
        start.index: written(encoder, prompt.tokens[start.offset : end])
        for start, end in zip(prompt.messages, ends, strict=True)
    }


def tool_loop() -> list[Message]:
    return [
        say("system", "Be short, please."),
        say("user", "What is in it?"),
        call('{"path": "first.py"}'),
        result("the first content"),
        call('{"path": "second.py"}', "call_9876543210"),
        result("the second content", "call_9876543210"),
        say("assistant", "Nothing."),
        say("user", "And now?"),
    ]


NEEDLES = ["Be short", "What is in", "first.py", "the first", "second.py", "the second", "Nothing."]


@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_message_is_where_its_words_are(family: str, tools: list[Message]) -> None:
    encoder = ENCODERS[family]
    messages = tool_loop()
    prompt = encoder.chat(messages, tools)
    found = parts(encoder, prompt)
    roles = {start.index: start.role for start in prompt.messages}
    assert roles == {index: message["role"] for index, message in enumerate(messages)}
    for index, needle in enumerate([*NEEDLES, "And now?"]):
        assert needle in found[index], (index, found)
        assert sum(needle in text for text in found.values()) == 1


contents = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join)


@settings(deadline=None, max_examples=60)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    system=st.none() | contents,
    turns=st.lists(st.tuples(contents, contents), min_size=1, max_size=4),
    more=contents,
)
def test_any_content_lies_within_its_message(
    family: str, system: str | None, turns: list[tuple[str, str]], more: str
) -> None:
    encoder = ENCODERS[family]
    messages = [say("system", f"[{system}]")] if system is not None else []
    for asked, answered in turns:
        messages += [say("user", f"[{asked}]"), say("assistant", f"({answered})")]
    messages.append(say("user", f"[{more}]"))
    for length in range(len(messages) - 2, len(messages) + 1):
        if length < 1 or messages[length - 1]["role"] == "assistant":
            continue
        prompt = encoder.chat(messages[:length])
        found = parts(encoder, prompt)
        assert list(found) == list(range(length))
        for index, text in found.items():
            assert messages[index]["content"] in text
    assert prompt.messages == encoder_of(family).chat(messages).messages


def test_a_conversation_goes_on_as_if_it_had_been_sent_at_once() -> None:
    for family, encoder in ENCODERS.items():
        messages = tool_loop()
        for length in (2, 4, 6, 8):
            prompt = encoder.chat(messages[:length], [TOOL])
        fresh = encoder_of(family).chat(messages, [TOOL])
        assert prompt.messages == fresh.messages
        messages[1] = say("user", "What else?")
        changed = encoder.chat(messages, [TOOL])
        assert changed.messages == encoder_of(family).chat(messages, [TOOL]).messages


def test_messages_that_a_template_gets_as_one_have_places_of_their_own() -> None:
    encoder = ENCODERS["gemma"]
    prompt = encoder.chat(
        [
            say("system", "First rule."),
            say("developer", "Second rule."),
            say("user", "  One question."),
            say("user", "Another question."),
            say("assistant", "An answer."),
            say("system", "A late rule."),
            say("user", "So?"),
        ]
    )
    found = parts(encoder, prompt)
    assert [start.role for start in prompt.messages][:3] == ["system", "developer", "user"]
    for index, needle in enumerate(
        ["First", "Second", "One question", "Another", "An answer", "A late rule", "So?"]
    ):
        assert needle in found[index], found


def test_a_message_between_a_call_and_its_result_is_where_it_was_put() -> None:
    encoder = ENCODERS["qwen"]
    messages = [say("user", "go"), call(), say("system", "Reminder."), result("the result")]
    prompt = encoder.chat(messages)
    assert [start.index for start in prompt.messages] == [0, 1, 3, 2]
    assert "Reminder." in parts(encoder, prompt)[2]


def test_what_precedes_the_first_message_is_no_messages() -> None:
    prompt = ENCODERS["llama"].chat([say("user", "hi")])
    assert prompt.message_at(0) is None
    first = prompt.messages[0]
    assert prompt.message_at(first.offset) == prompt.message_at(len(prompt)) == first


def test_the_message_at_an_offset_is_the_last_that_has_begun() -> None:
    starts = (MessageStart(3, 0, "system"), MessageStart(7, 1, "user"), MessageStart(7, 2, "user"))
    prompt = Prompt(token_ids(range(10)), messages=starts)
    found = [prompt.message_at(offset) for offset in (0, 2, 3, 6, 7, 9)]
    assert found == [None, None, starts[0], starts[0], starts[2], starts[2]]


@pytest.mark.parametrize("scheme", ["first", "legacy", "never"])
def test_a_tokenizer_that_puts_blanks_before_words_has_the_same_places(scheme: str) -> None:
    tokenizer = sentencepiece(scheme)
    template = JinjaTemplate(FAMILIES["chatml"].source, {"bos_token": CHATML_TOKENS[0]})
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    found = parts(encoder, encoder.chat(tool_loop()))
    for index, needle in enumerate(NEEDLES):
        assert needle.replace(" ", "▁") in found[index].replace(" ", "▁")


PLAIN = """\
{%- for message in messages %}
{{- message.role + ': ' }}{{ message.content }}{{ '\\n' }}
{%- endfor %}"""
BACK_AND_FORTH = """\
{%- for message in messages %}{%- if message.content %}{%- endif %}{%- endfor %}
{%- for message in messages | reverse %}{%- if message.content %}{%- endif %}{%- endfor %}
{%- macro write(content) %}{{ content | trim }}{% endmacro %}
{%- for message in messages %}
{{- '<|im_start|>' }}{{ message.role }}{{ write(message.get('content')) }}{{- '<|im_end|>' }}
{%- endfor %}
{%- if messages[-1].content %}<|im_start|>{% endif %}"""


@pytest.mark.parametrize("source", [PLAIN, BACK_AND_FORTH])
def test_a_template_that_reads_and_writes_in_its_own_way_is_followed(source: str) -> None:
    tokenizer = byte_level()
    encoder = MlxPromptEncoder(
        tokenizer, JinjaTemplate(source, {}), Vocabulary(tokenizer.get_vocab_size())
    )
    messages = [say(role, f"Here is {role}.") for role in ("user", "assistant") * 3]
    for length in (1, 3, 5):
        prompt = encoder.chat(messages[:length])
        found = parts(encoder, prompt)
        assert [f"Here is {m['role']}." in found[i] for i, m in enumerate(messages[:length])]
        assert all(text.count("Here is") == 1 for text in found.values())


def test_a_function_for_a_template_leaves_messages_without_a_place() -> None:
    def write(messages: list[Message], **options: Any) -> str:
        return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in messages)

    tokenizer = byte_level()
    encoder = MlxPromptEncoder(
        tokenizer,
        FunctionTemplate(write, "<|im_start|>"),
        Vocabulary(tokenizer.get_vocab_size()),
        datetime.now,
    )
    prompt = encoder.chat([say("user", "hi")])
    assert prompt.messages == ()
    assert prompt.message_at(5) is None


@pytest.mark.parametrize("family", ["chatml", "llama"])
def test_only_new_messages_are_looked_at(family: str) -> None:
    """Counted by the messages whose fields tell that they were read."""
    tokenizer = byte_level(FAMILIES[family].special)
    seen: list[int] = []

    class Counting(JinjaTemplate):
        def pieces(self, messages: Any, *rest: Any, **more: Any) -> Any:
            seen.append(sum(type(message) is not dict for message in messages))
            return super().pieces(messages, *rest, **more)

    template = Counting(FAMILIES[family].source, FAMILIES[family].names)
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    turns = [say("system", "s")]
    for number in range(40):
        turns += [say("user", f"q{number}"), say("assistant", f"a{number}")]
    encoder.chat(turns[:-3])
    del seen[:]
    encoder.chat(turns[:-1])
    assert max(seen) <= 4
