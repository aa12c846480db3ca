"""Which ids end an answer, read off the files and off the template."""

from __future__ import annotations

import pytest

from mlx_backend.stop_ids import listed_ids, turn_end_ids
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.template_families import FAMILIES, byte_level, encoder_of

ENDS = {
    "chatml": "<|im_end|>",
    "qwen": "<|im_end|>",
    "llama": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
    "strict": "<|im_end|>",
}


def ends(family: str, source: str | None = None) -> set[str]:
    chosen = FAMILIES[family]
    template = JinjaTemplate(source or chosen.source, chosen.names)
    tokenizer = byte_level(chosen.special)
    found = turn_end_ids(template, encoder_of(family).control)
    return {tokenizer.id_to_token(token) for token in found}


@pytest.mark.parametrize(("family", "end"), ENDS.items())
def test_a_template_shows_how_a_turn_ends(family: str, end: str) -> None:
    assert ends(family) == {end}


def test_the_end_of_a_channel_ends_no_turn() -> None:
    assert "<|end|>" not in ends("harmony")


def test_where_nothing_ends_a_turn_the_next_ones_begin_does() -> None:
    source = "{% for m in messages %}{{ '<|im_start|>' + m.content }}{% endfor %}"
    assert ends("chatml", source) == {"<|im_start|>"}


def test_of_two_marks_behind_an_answer_the_last_ends_the_turn() -> None:
    source = "{% for m in messages %}{{ m.content + '<|im_end|><|endoftext|>' }}{% endfor %}"
    assert ends("chatml", source) == {"<|endoftext|>"}


def test_ids_are_taken_from_every_config_in_every_form() -> None:
    configs = [{"eos_token_id": 1}, {"eos_token_id": [2, 3]}, {"text_config": {"eos_token_id": 4}}]
    assert listed_ids(*configs, {}, {"eos_token_id": None}) == {1, 2, 3, 4}
