"""Resumed = cold: every cache class of mlx-lm, through backend and prefix cache together.

Answers are compared by log-probabilities: to the bit where the cold run reads in the same chunks,
else to what float32 allows (tiny models' log-probabilities reach 30). Reuse is always asserted,
since an answer that was read again proves nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from mlx_backend.merging import can_merge, pads_harmlessly
from mlx_backend.messages import TokenIds
from tests.mlx_backend.conversations import CHUNK, Answer, Conversations, chunk_ends, common
from tests.mlx_backend.tiny_rows import KINDS_AND_BITS, live_bytes, some_tokens, tiny_model

A, B = some_tokens(110, seed=1), some_tokens(110, seed=2)
FORK = 2 * CHUNK
CONSTANTS_BYTES = 64  # scalars that a model's compiled functions keep; less than a token's KV


@pytest.fixture(autouse=True)
def buffers_of_exact_size() -> Iterator[None]:
    """A pooled buffer may be larger than what it serves, which would blur the bytes."""
    limit = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(limit)


@pytest.fixture(params=KINDS_AND_BITS, ids=lambda case: "-".join(str(x) for x in case if x))
def kind(request: pytest.FixtureRequest) -> tuple[str, int | None]:
    kind, bits = request.param
    tiny_model(kind)
    return kind, bits


@pytest.fixture
def talk(kind: tuple[str, int | None]) -> Iterator[Conversations]:
    """Conversations of an unlimited cache; nothing of them is left afterwards."""
    yield from conversations(*kind)


def conversations(kind: str, bits: int | None, **limits: int) -> Iterator[Conversations]:
    made = Conversations(kind, bits, **limits)
    made.listener.logits.clear()
    mx.set_cache_limit(0)
    bytes_before, arrays_before = live_bytes(), live_arrays()
    yield made
    made.cache.check()
    made.cache.clear()
    made.listener.logits.clear()
    assert not made.decoding
    assert live_arrays() == arrays_before
    assert 0 <= live_bytes() - bytes_before <= CONSTANTS_BYTES


def live_arrays() -> int:
    gc.collect()
    return sum(isinstance(thing, mx.array) for thing in gc.get_objects())


def joined(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts)


def assert_same(answer: Answer, cold: Answer, *, to_the_bit: bool) -> None:
    """The first distribution comes from reading, the others from decoding."""
    assert answer.tokens == cold.tokens
    for ours, theirs in zip(answer.log_probabilities, cold.log_probabilities, strict=True):
        if to_the_bit:
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-4)


def assert_like_cold(
    talk: Conversations, answer: Answer, *, reused: int, to_the_bit: bool = True
) -> None:
    assert answer.reused == reused > 0
    cold = talk.cold(answer.prompt, len(answer.tokens), answer.cuts)
    assert_same(answer, cold, to_the_bit=to_the_bit)


def test_a_conversation_that_goes_on_reuses_all_of_it(talk: Conversations) -> None:
    first = talk.ask(A)
    second = talk.ask(joined(first.history, B[:30]))
    third = talk.ask(joined(second.history, B[30:37]))
    assert_like_cold(talk, second, reused=len(first.history))
    assert_like_cold(talk, third, reused=len(second.history))


def test_a_fork_inside_an_edge_reuses_what_is_common(talk: Conversations) -> None:
    talk.ask(A, stops=[FORK])
    fork = FORK + 7
    branch = talk.ask(joined(A[:fork], B[:40]))
    expected = fork if talk.is_sliceable else FORK
    assert_like_cold(talk, branch, reused=expected, to_the_bit=not talk.is_sliceable)
    again = talk.ask(A)
    assert_like_cold(talk, again, reused=len(A) - 1)


def test_a_fork_at_a_checkpoint_reuses_all_before_it(talk: Conversations) -> None:
    talk.ask(A, stops=[FORK])
    branch = talk.ask(joined(A[:FORK], B[:40]))
    assert_like_cold(talk, branch, reused=FORK)
    assert_like_cold(talk, talk.ask(joined(A, B[:5])), reused=len(A) - talk_gap(talk))


def talk_gap(talk: Conversations) -> int:
    """A sliceable model can be cut behind the prompt's end, others go back to before its last."""
    return 0 if talk.is_sliceable else 1


def test_an_equal_prompt_runs_its_last_token_only(talk: Conversations) -> None:
    first = talk.ask(A)
    read_before = talk.backend.counters.tokens_read
    for _ in range(2):
        assert_same(talk.ask(A), first, to_the_bit=True)
        assert talk.answers[-1].reused == len(A) - 1
    assert talk.backend.counters.tokens_read == read_before


def test_a_shorter_prompt_reuses_its_own_length(talk: Conversations) -> None:
    talk.ask(A, stops=[FORK])
    shorter = A[: FORK + 10]
    expected = len(shorter) - 1 if talk.is_sliceable else FORK
    answer = talk.ask(shorter)
    assert_like_cold(talk, answer, reused=expected, to_the_bit=not talk.is_sliceable)
    assert_like_cold(talk, talk.ask(A), reused=len(A) - 1)


def test_a_client_that_leaves_after_any_chunk_loses_none_of_it(talk: Conversations) -> None:
    ends = chunk_ends(0, len(A) - 1, ())
    for count, end in enumerate(ends, 1):
        talk.cache.clear()
        talk.answers.clear()
        talk.ask(A, leave_after=count)
        assert_like_cold(talk, talk.ask(A), reused=end)


def test_a_client_that_leaves_while_decoding_loses_nothing(talk: Conversations) -> None:
    for length in (1, 4):
        talk.cache.clear()
        talk.answers.clear()
        cut_short = talk.ask(A, length=length)
        assert_like_cold(talk, talk.ask(A, length=6), reused=len(A) - 1)
        gone_on = talk.ask(joined(cut_short.history, B[:20]))
        assert_like_cold(talk, gone_on, reused=len(A) + length)


def test_an_evicted_parent_leaves_its_child_whole(kind: tuple[str, int | None]) -> None:
    for talk in conversations(*kind, max_entries=1):
        parent = talk.ask(A, stops=[FORK])
        child = talk.ask(joined(parent.history, B[:30]))
        status = talk.cache.status()
        assert status.entries == 1
        assert talk.is_sliceable or status.thinned_checkpoints > 0
        prompt = joined(child.history, B[30:50])
        kept = talk.cache.peek(prompt)
        assert kept >= len(parent.history)
        assert_like_cold(talk, talk.ask(prompt), reused=kept)


def test_an_over_large_newcomer_is_served_and_pushes_nobody_out_for_nothing(
    kind: tuple[str, int | None],
) -> None:
    layout_bytes = stored_bytes(kind, len(A) + 3)
    for talk in conversations(*kind, max_bytes=layout_bytes * 3 // 2):
        talk.ask(A[:40])
        newcomer = talk.ask(joined(B, A, B))
        cold = talk.cold(newcomer.prompt, len(newcomer.tokens), newcomer.cuts)
        assert_same(newcomer, cold, to_the_bit=True)
        assert 0 < talk.cache.status().bytes <= talk.cache.status().max_bytes
        back = talk.ask(A[:40])
        assert_same(back, talk.cold(back.prompt, 3, back.cuts), to_the_bit=False)


def stored_bytes(kind: tuple[str, int | None], length: int) -> int:
    """What the tree counts for one conversation of `length` tokens with one checkpoint."""
    talk = Conversations(*kind)
    talk.ask(some_tokens(length - 3, seed=9))
    return talk.cache.status().bytes


def test_rows_of_mixed_lengths_join_and_leave_as_if_alone(talk: Conversations) -> None:
    """Each reuses the same head; they come and go at different steps."""
    head = talk.ask(A[:FORK], length=1).history
    plan = [(7, 1, 0), (60, 14, 1), (31, 3, 1), (90, 8, 2), (2, 14, 6)]  # tokens, length, joins at
    requests = []
    for now in range(60):
        for tokens, length, joins in plan:
            if joins == now:
                prompt = joined(head, some_tokens(tokens, seed=tokens))
                requests.append(talk.begin(prompt, length=length))
        if now > 6 and not talk.decoding:
            break
        talk.step()
    assert len(requests) == len(plan)
    assert (talk.backend.counters.batch_copies > 0) == can_share(talk)
    for request in requests:
        assert_like_cold(talk, request.answer, reused=len(head), to_the_bit=False)
    for request in requests:
        follow_up = talk.ask(joined(request.answer.history, B[:9]))
        length = len(request.answer.history)
        assert_like_cold(talk, follow_up, reused=length, to_the_bit=False)


def can_share(talk: Conversations) -> bool:
    layout = talk.layout
    return can_merge(layout.make_caches()) and pads_harmlessly(talk.listener.model, layout)


def test_the_tree_counts_the_bytes_that_it_keeps(talk: Conversations) -> None:
    before = live_bytes()
    first = talk.ask(A)
    talk.ask(joined(first.history, B[:30]))
    talk.ask(joined(A[:60], B[:30]))
    talk.listener.logits.clear()
    status = talk.cache.status()
    assert live_bytes() - before == status.span_bytes + status.checkpoint_bytes


def test_a_model_with_an_unknown_cache_class_reuses_nothing_and_is_right() -> None:
    for talk in conversations("unknown", None):
        first, again = talk.ask(A), talk.ask(A)
        assert again.reused == 0
        assert_same(again, first, to_the_bit=True)
        assert talk.cache.status().bytes == 0


def test_common_counts_equal_tokens() -> None:
    assert common(A, joined(A[:9], B)) == 9
