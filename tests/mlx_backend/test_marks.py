"""Histories only grow, and joints are where ids say they are."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.template_families import (
    FAMILIES,
    byte_level,
    encoder_of,
)
from tests.mlx_backend.words import (
    TOOL,
    Message,
    call,
    common,
    result,
    say,
    written,
)

ENCODERS = {family: encoder_of(family) for family in FAMILIES}
TAILS = {
    "chatml": "<|im_start|>assistant\n",
    "qwen": "<|im_start|>assistant\n",
    "qwen thinking": "<|im_start|>assistant\n<think>\n",
    "qwen coder": "<|im_start|>assistant\n",
    "empty thinking": "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "llama": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<start_of_turn>model\n",
    "mistral": "",
    "strict": "<|im_start|>assistant\n",
    "harmony": "<|start|>assistant",
    "glm": "<|assistant|>",
}
DROP_THINKING = ("qwen", "qwen thinking", "harmony", "glm")


# Histories only grow

words = st.text("ab<>|\n x", min_size=1, max_size=8).map(lambda text: f"w{text}w")
reminders = st.lists(words.map(lambda text: say("system", text)), max_size=1)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """What comes after a user message: tool calls with results, then an answer."""
    messages: list[Message] = []
    for number in range(draw(st.integers(0, 2))):
        asked = call({"path": draw(words)}, f"call_{number:010}")
        if draw(st.booleans()):
            asked["reasoning_content"] = draw(words)
        messages += [asked, *draw(reminders), result(draw(words), f"call_{number:010}")]
    answer = draw(words)
    if draw(st.booleans()):
        answer = f"<think>\n{draw(words)}\n</think>\n\n{answer}"
    return [*messages, say("assistant", answer)]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Message], list[int]]:
    """A history, and where a request can have ended: before each assistant message."""
    messages = draw(reminders)
    for _ in range(draw(st.integers(1, 3))):
        messages = [*messages, say("user", draw(words)), *draw(reminders), *draw(turns())]
    messages = [*messages, say("user", draw(words))]
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return messages, ends


@pytest.mark.parametrize("family", FAMILIES)
@given(conversation=conversations(), with_tools=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_longer_history_begins_with_the_shorter_one(
    family: str, conversation: tuple[list[Message], list[int]], with_tools: bool
) -> None:
    encoder = ENCODERS[family]
    messages, ends = conversation
    tools = [TOOL] if with_tools and family != "mistral" else []  # it moves tools to the last user
    whole = encoder.chat(messages, tools)
    for end in ends:
        prompt = encoder.chat(messages[:end], tools)
        marks = prompt.marks
        assert 0 <= marks.head_end <= marks.last_user_end <= len(prompt)
        assert common(prompt, whole) >= marks.last_user_end
        assert marks.stable_end <= len(prompt)
        if marks.stable_end > marks.last_user_end and messages[end - 1]["role"] == "user":
            assert common(prompt, whole) >= marks.stable_end
        if family not in DROP_THINKING:  # so the joint lies earlier
            assert written(encoder, prompt.tokens[marks.last_user_end :]) == TAILS[family]


@pytest.mark.parametrize("family", FAMILIES)
@given(conversation=conversations())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_encoded_before_changes_nothing(
    family: str, conversation: tuple[list[Message], list[int]]
) -> None:
    messages, ends = conversation
    fresh = encoder_of(family).chat(messages, [TOOL])
    for end in ends:
        ENCODERS[family].chat(messages[:end], [TOOL])
    again = ENCODERS[family].chat(messages, [TOOL])
    assert fresh.tokens.tolist() == again.tokens.tolist()
    assert fresh.marks == again.marks


# Joints


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_what_conversations_of_one_system_text_share(family: str) -> None:
    encoder = ENCODERS[family]
    one = encoder.chat([say("system", "Be brief."), say("user", "uno")], [TOOL])
    other = encoder.chat([say("system", "Be brief."), say("user", "due")], [TOOL])
    assert one.marks.head_end == other.marks.head_end == common(one, other)
    alone = encoder.chat([say("system", "Be long."), say("user", "uno")], [TOOL])
    assert common(one, alone) < one.marks.head_end


def test_an_empty_think_block_in_the_tail_is_not_stable() -> None:
    encoder = ENCODERS["empty thinking"]
    prompt = encoder.chat([say("user", "hi")])
    assert written(encoder, prompt.tokens[prompt.marks.stable_end :]) == "<think>\n\n</think>\n\n"
    following = encoder.chat([say("user", "hi"), say("assistant", "OK"), say("user", "more")])
    assert common(prompt, following) == prompt.marks.stable_end


def test_options_that_change_the_tail_change_what_is_stable() -> None:
    encoder = ENCODERS["qwen"]
    closed = encoder.chat([say("user", "hi")], template_options={"enable_thinking": False})
    open_ended = encoder.chat([say("user", "hi")])
    assert written(encoder, closed.tokens[closed.marks.stable_end :]) == "<think>\n\n</think>\n\n"
    assert open_ended.marks.stable_end == len(open_ended)


@pytest.mark.parametrize("family", ["qwen", "harmony"])
def test_in_a_tool_loop_the_joint_lies_where_the_next_user_message_turns_back(family: str) -> None:
    encoder = encoder_of(family)
    loop = [say("user", "go")]
    opening = encoder.chat(loop, [TOOL])
    for step in range(3):
        loop += [{**call(), "reasoning_content": f"thought {step}"}, result(f"line {step}")]
        prompt = encoder.chat(loop, [TOOL])
        answered = [*loop, say("assistant", "done")]
        after = encoder.chat([*answered, say("user", "next")], [TOOL])
        going_on = encoder.chat(
            [*loop, {**call(), "reasoning_content": "more"}, result("x")], [TOOL]
        )
        assert prompt.marks.last_user_end == common(prompt, after)
        assert prompt.marks.last_user_end >= opening.marks.last_user_end
        assert common(prompt, going_on) >= prompt.marks.stable_end >= len(prompt) - 4


def test_thinking_that_begins_an_answer_is_dropped_by_the_templates_own_rule() -> None:
    encoder = ENCODERS["qwen"]
    asked, answered = say("user", "hi"), "<think>\nlong thought\n</think>\n\nfine"
    inline = encoder.chat([asked, say("assistant", answered), say("user", "next")])
    apart = encoder.chat(
        [asked, say("assistant", "fine", reasoning_content="long thought"), say("user", "next")]
    )
    assert inline.tokens.tolist() == apart.tokens.tolist()
    assert "long thought" not in written(encoder, inline.tokens)


def test_thinking_that_comes_back_is_the_thinking_that_was_sampled() -> None:
    encoder = ENCODERS["qwen"]
    opening = encoder.chat([say("user", "hi")], [TOOL])
    sampled = '<think>\nI look\n</think>\n\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call><|im_end|>'  # noqa: E501
    again = encoder.chat(
        [say("user", "hi"), {**call(), "content": "<think>\nI look\n</think>\n\n"}, result("x")],
        [TOOL],
    )
    expected = written(encoder, opening.tokens) + sampled
    assert written(encoder, again.tokens).startswith(expected)
    assert again.tokens.tolist().count(byte_level().token_to_id("<think>")) == 1


def test_tools_that_move_with_the_last_user_message_leave_little_that_is_stable() -> None:
    encoder = encoder_of("mistral")
    history = [say("user", "same words"), say("assistant", "ok"), say("user", "same words")]
    prompt = encoder.chat(history, [TOOL])
    following = encoder.chat([*history, say("assistant", "ok"), say("user", "more")], [TOOL])
    assert prompt.marks.stable_end <= common(prompt, following) < len(prompt)
    assert prompt.marks.last_user_end <= common(prompt, following)


def test_text_beside_a_thought_and_a_call_goes_into_the_thought_where_it_must() -> None:
    encoder = ENCODERS["harmony"]
    both = {**call(), "content": "Looking", "reasoning_content": "I look"}
    text = written(encoder, encoder.chat([say("user", "hi"), both, result("x")]).tokens)
    assert "analysis<|message|>I look\n\nLooking<|end|>" in text


def test_an_answer_to_an_opened_think_block_is_split_where_the_block_ends() -> None:
    source = FAMILIES["qwen"].source.replace(
        "{{- '<|im_start|>assistant\\n' }}\n{%- if enable",
        "{{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- if enable",
    )
    tokenizer = byte_level()
    encoder = MlxPromptEncoder(
        tokenizer, JinjaTemplate(source, {}), Vocabulary(tokenizer.get_vocab_size())
    )
    opening = encoder.chat([say("user", "hi")])
    assert written(encoder, opening.tokens).endswith("<think>\n")
    answer = {**call(), "content": "I look\n</think>\n\nThere:"}
    again = encoder.chat([say("user", "hi"), answer, result("x")])
    assert "<think>\nI look\n</think>\n\nThere:" in written(encoder, again.tokens)
    assert common(again, opening) == len(opening)


def test_a_conversation_whose_tail_differs_from_a_short_ones_is_rendered_again() -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|im_start|>' + ('<think>' if messages|length > 2 else '') }}{% endif %}"
    )
    tokenizer = byte_level()
    encoder = MlxPromptEncoder(
        tokenizer, JinjaTemplate(source, {}), Vocabulary(tokenizer.get_vocab_size())
    )
    prompt = encoder.chat([say("user", "a"), say("assistant", "b"), say("user", "c")])
    assert written(encoder, prompt.tokens[prompt.marks.stable_end :]) == "<think>"
