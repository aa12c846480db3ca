"""Prompts that cannot fit: refused early, in bounded memory, and given up with who asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_backend.errors import EncodingStopped, PromptTooLong
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.template_families import FAMILIES, byte_level, sentencepiece
from tests.mlx_backend.words import say

CONTEXT = 1000
MEGABYTE = 1 << 20


class WatchedTokenizer:
    """Notes how many characters it is given at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> Any:
        self.calls.append(sum(map(len, texts)))
        return self._tokenizer.encode_batch_fast(texts, **options)


def encoder(context_size: int | None, tokenizer: Any = None) -> MlxPromptEncoder:
    chosen = FAMILIES["qwen"]
    tokenizer = tokenizer or byte_level(chosen.special)
    size = tokenizer.get_vocab_size()
    template = JinjaTemplate(chosen.source, chosen.names)
    return MlxPromptEncoder(tokenizer, template, Vocabulary(size), context_size=context_size)


def watched(context_size: int | None) -> tuple[MlxPromptEncoder, WatchedTokenizer]:
    tokenizer = WatchedTokenizer(byte_level(FAMILIES["qwen"].special))
    made = encoder(context_size, tokenizer)
    tokenizer.calls.clear()
    return made, tokenizer


@pytest.mark.parametrize("unit", ["a ", "x", "é ", "\n", "<|im_end|>", "\ufdd0\ufdd2"])
def test_a_prompt_far_too_long_is_refused_after_a_few_slices(unit: str) -> None:
    prompts, tokenizer = watched(CONTEXT)
    with pytest.raises(PromptTooLong) as caught:
        prompts.chat([say("user", unit * (4 * MEGABYTE // len(unit)))])
    assert (caught.value.limit, caught.value.tokens > CONTEXT) == (CONTEXT, True)
    assert sum(tokenizer.calls) < MEGABYTE


def test_plain_text_is_refused_as_early() -> None:
    prompts, tokenizer = watched(CONTEXT)
    with pytest.raises(PromptTooLong):
        prompts.text("a " * MEGABYTE)
    assert sum(tokenizer.calls) < MEGABYTE // 4


def test_what_is_known_of_a_conversation_counts() -> None:
    said = [say("user", "b " * 40_000)]
    length = len(encoder(None).chat(said))
    longer = [*said, say("assistant", "c"), say("user", "d " * (2 * length))]
    prompts, tokenizer = watched(length + 10_000)
    prompts.chat(said)
    tokenizer.calls.clear()
    with pytest.raises(PromptTooLong):
        prompts.chat(longer)
    assert sum(tokenizer.calls) < 100_000


def test_a_prompt_that_is_known_whole_is_returned_however_long() -> None:
    """Its length is then said exactly, by whoever compares it with the context."""
    assert len(encoder(CONTEXT).chat([say("user", "a " * CONTEXT)])) > CONTEXT


FRAGMENTS = ["word ", "a", "é", " " * 50, "\n\n", "x" * 3000, "<|im_end|>", "1234567 ", "\ufdd0"]


@pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece("always")])
@settings(max_examples=15, deadline=None)
@given(fragments=st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8))
def test_nothing_is_refused_that_fits(tokenizer: Any, fragments: list[str]) -> None:
    unit = "".join(fragments)
    text = unit * (1 + 150_000 // len(unit))
    length = len(encoder(None, tokenizer).text(text))
    assert len(encoder(length, tokenizer).text(text)) == length


def test_many_messages_are_encoded_a_few_at_once() -> None:
    prompts, tokenizer = watched(None)
    prompts.chat([say("user", f"{number} " + "a " * 10_000) for number in range(30)])
    assert max(tokenizer.calls) < 100_000
    assert len(tokenizer.calls) < 15


@pytest.mark.parametrize("context_size", [None, 60_000])
def test_nobody_waiting_ends_the_work(context_size: int | None) -> None:
    prompts, tokenizer = watched(context_size)
    messages = [say("user", f"{number} " + "a " * 10_000) for number in range(30)]
    with pytest.raises(EncodingStopped):
        prompts.chat(messages, should_stop=lambda: len(tokenizer.calls) == 2)
    assert len(tokenizer.calls) == 2


def test_what_was_refused_is_not_kept() -> None:
    prompts, text = encoder(CONTEXT), "a " * 4 * MEGABYTE
    holders = sys.getrefcount(text)
    with pytest.raises(PromptTooLong):
        prompts.chat([say("user", text)])
    assert sys.getrefcount(text) == holders


def test_nobody_waiting_ends_the_rendering() -> None:
    prompts, tokenizer = watched(None)
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) == 5

    with pytest.raises(EncodingStopped):
        prompts.chat([say("user", "a")] * 1000, should_stop=should_stop)
    assert (len(asked), tokenizer.calls) == (5, [])
