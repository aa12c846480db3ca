"""How much thinking is wanted: in the template's own words, and never unasked."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from mlx_lm.chat_templates import deepseek_v32

from mlx_backend.messages import NO_EFFORT, Effort
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import FunctionTemplate, JinjaTemplate
from tests.mlx_backend.template_families import FAMILIES, byte_level, encoder_of
from tests.mlx_backend.words import TOOL, common, say, written

SWITCH = "{{ enable_thinking if enable_thinking is defined else 'unset' }}"
OTHER_SWITCH = "{% if thinking is defined and thinking %}on{% else %}off{% endif %}"
MODE = (
    "{% if thinking_mode == 'enabled' %}on{% elif thinking_mode == 'disabled' %}off"
    "{% else %}unset{% endif %}"
)
WRITTEN = "{% if not reasoning_effort %}{% set reasoning_effort = 'medium' %}{% endif %}" + (
    "{{ reasoning_effort }}"
)
LISTED = (
    "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}"
    "{% set reasoning_effort = 'no_think' %}{% endif %}{{ reasoning_effort }}"
)
ONE_WORD = "{{ 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' }}"
BUDGET = "{% if thinking_budget is not defined %}{% set thinking_budget = -1 %}{% endif %}" + (
    "{{ thinking_budget }}"
)
BOTH = SWITCH + "{{ ' ' + (reasoning_effort or 'unset') }}"

OFF, ON = Effort(thinking=False), Effort(thinking=True)
LOW, XHIGH = Effort(level="low"), Effort(True, "xhigh")
MINIMAL = Effort(level="minimal")


def shown(source: str, effort: Effort, options: dict[str, Any] | None = None) -> str:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer.get_vocab_size())
    encoder = MlxPromptEncoder(tokenizer, JinjaTemplate(source, {}), vocabulary)
    return written(encoder, encoder.chat([say("user", "hi")], (), options, effort=effort).tokens)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SWITCH, ["unset", "False", "True", "True", "True", "False"]),
        (OTHER_SWITCH, ["off", "off", "on", "on", "on", "off"]),
        (MODE, ["unset", "off", "on", "on", "on", "off"]),
        (WRITTEN, ["medium", "low", "medium", "low", "high", "low"]),
        (LISTED, ["no_think", "no_think", "high", "low", "high", "low"]),
        (ONE_WORD, ["max", "high", "max", "high", "high", "high"]),
        (BUDGET, ["-1", "0", "-1", "1024", "-1", "512"]),
        (BOTH, ["unset unset", "False unset", "True unset", "unset low", "True high", "unset low"]),
    ],
    ids=["switch", "other switch", "mode", "written", "listed", "one word", "budget", "both"],
)
def test_an_effort_is_told_in_the_templates_own_words(source: str, expected: list[str]) -> None:
    assert [shown(source, each) for each in (NO_EFFORT, OFF, ON, LOW, XHIGH, MINIMAL)] == expected


def test_the_clients_own_template_options_win() -> None:
    assert shown(BOTH, XHIGH, {"enable_thinking": False}) == "False high"
    assert shown(WRITTEN, LOW, {"reasoning_effort": "extreme"}) == "extreme"


def test_a_field_of_messages_is_no_switch() -> None:
    source = "{% for m in messages %}{{ m.thinking or m['enable_thinking'] or 'none' }}{% endfor %}"
    assert shown(source, ON) == "none"


def test_a_function_for_a_template_is_asked_in_its_own_words_too() -> None:
    source = inspect.getsource(deepseek_v32)
    tokenizer = byte_level()
    template = FunctionTemplate(deepseek_v32.apply_chat_template, source)
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))

    def tail(effort: Effort) -> str:
        prompt = encoder.chat([say("user", "question")], effort=effort)
        return written(encoder, prompt.tokens).rpartition("question")[2]

    assert tail(NO_EFFORT) == tail(ON) != tail(OFF)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_set_that_nobody_asked_for(family: str) -> None:
    """A3, A16: and a switch that stays the same from turn to turn costs no more than its tail."""
    encoder = encoder_of(family)
    history = [say("system", "Be brief."), say("user", "hi")]
    tools = [] if family == "mistral" else [TOOL]
    plain = encoder.chat(history, tools)
    assert encoder.chat(history, tools, effort=NO_EFFORT).tokens.tolist() == plain.tokens.tolist()
    going_on = [*history, say("assistant", "OK"), say("user", "more")]
    for effort in (OFF, ON, LOW):
        prompt = encoder.chat(history, tools, effort=effort)
        following = encoder.chat(going_on, tools, effort=effort)
        tail = len(prompt) - prompt.marks.last_user_end
        assert common(prompt, following) >= len(prompt) - tail
        other = encoder.chat(going_on, tools)
        assert common(other, following) >= prompt.marks.last_user_end
