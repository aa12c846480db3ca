"""The floor: what must be read of a prompt, by hand-counted examples."""

from __future__ import annotations

from typing import Any

from daemon.bench.floor import (
    History,
    Messages,
    boundary_before,
    common_prefix,
    floor,
    output_encoder,
    turn_end,
)
from mlx_backend.errors import PromptRejected
from mlx_backend.messages import Prompt, token_ids
from tests.bench.qwen_like import QwenLikePrompts
from tests.fakes import TURN_END


def test_two_prompts_share_what_they_begin_with() -> None:
    assert common_prefix(token_ids([1, 2, 3]), token_ids([1, 2, 4, 5])) == 2
    assert common_prefix(token_ids([1, 2]), token_ids([1, 2, 4])) == 2
    assert common_prefix(token_ids([7]), token_ids([8])) == 0


def test_the_longest_of_all_earlier_sequences_counts() -> None:
    history = History()
    history.add(token_ids([1, 2, 3, 4]))
    history.add(token_ids([1, 2, 9, 9, 9]))
    assert history.known(token_ids([1, 2, 9, 9, 5, 5])) == 4
    assert history.known(token_ids([1, 2, 3, 4, 5])) == 4
    assert history.known(token_ids([5])) == 0


def test_a_sequence_that_another_continues_is_still_known() -> None:
    history = History()
    history.add(token_ids([1, 2]))
    history.add(token_ids([1, 2, 3]))
    assert history.known(token_ids([1, 2, 3, 4])) == 3


def test_distinct_tokens_count_each_shared_prefix_once() -> None:
    history = History()
    for sequence in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 8], [1, 2, 3]):
        history.add(token_ids(sequence))
    assert history.distinct == 5


def test_one_token_must_always_be_read() -> None:
    assert floor(token_ids([1, 2, 3]), known=3) == 1
    assert floor(token_ids([1, 2, 3]), known=1) == 2


SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


class TestWithAStateThatCannotBeCut:
    """Known prefixes are taken back to where a message of the prompt ends."""

    # The turn that follows begins with the same token whoever speaks, hence the last `0`.
    after_system = len("0system\nBe brief.0\n0")
    after_question = len("0system\nBe brief.0\n0user\none0\n0assistant\n")
    after_answer = after_question + len("two0\n0")

    def boundary(self, known: int, encoder: QwenLikePrompts | None = None) -> int:
        encoder = encoder or QwenLikePrompts()
        prompt = encoder.chat(SAID).tokens
        return boundary_before(encoder, prompt, SAID, (), known)

    def test_within_a_message_its_beginning_counts(self) -> None:
        assert self.boundary(self.after_system - 1) == 0
        assert self.boundary(self.after_system + 8) == self.after_system
        assert self.boundary(self.after_question + 1) == self.after_question

    def test_a_message_whose_thinking_is_dropped_later_has_an_end_too(self) -> None:
        assert self.boundary(self.after_answer + 8) == self.after_answer

    def test_the_whole_prompt_needs_no_taking_back(self) -> None:
        whole = len(QwenLikePrompts().chat(SAID))
        assert self.boundary(whole) == whole
        assert self.boundary(whole - 1) == self.after_answer

    def test_a_template_may_refuse_beginnings(self) -> None:
        class Strict(QwenLikePrompts):
            def chat(self, messages: Messages, *args: Any, **options: Any) -> Prompt:
                if len(messages) == 1:
                    raise PromptRejected("a user message is needed")
                if [m["role"] for m in messages[-3:-1]] == ["assistant", "assistant"]:
                    raise PromptRejected("roles must alternate")
                return super().chat(messages, *args, **options)

        assert self.boundary(self.after_system + 8, Strict()) == self.after_system
        assert self.boundary(self.after_answer + 20, Strict()) >= self.after_answer


def test_text_that_follows_a_prompt_has_no_beginning_of_text() -> None:
    class WithOpening(QwenLikePrompts):
        def text(self, text: str):  # type: ignore[no-untyped-def]
            return self.ids([299, *text.encode()])

    assert output_encoder(WithOpening())("ab").tolist() == [97, 98]
    assert output_encoder(QwenLikePrompts())("ab").tolist() == [97, 98]
    assert output_encoder(QwenLikePrompts())("").tolist() == []


def test_an_answer_ends_with_the_token_that_its_template_writes_behind_it() -> None:
    assert turn_end(QwenLikePrompts()) == TURN_END
