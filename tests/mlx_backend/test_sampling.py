"""Sampling: mlx-lm's samplers are the oracle, fixed logits the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from mlx_backend.messages import Sampling, token_ids
from mlx_backend.sampling import BatchSampler, Penalties, penalties, row_keys

VOCABULARY = 50
DRAWS = 20_000


def made_up_logprobs(seed: int = 0, rows: int = 1, scale: float = 2.0) -> mx.array:
    random = np.random.default_rng(seed)
    logits = mx.array(random.normal(0, scale, (rows, VOCABULARY)).astype(np.float32))
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def draw(sampler: BatchSampler, logprobs: Any) -> list[int]:
    tokens: list[int] = sampler(logprobs).tolist()
    return tokens


def frequencies(tokens: Sequence[int]) -> np.ndarray:
    return np.bincount(tokens, minlength=VOCABULARY) / len(tokens)


def our_frequencies(logprobs: mx.array, **options: Any) -> np.ndarray:
    rows = [Sampling(seed=seed, **options) for seed in range(DRAWS)]
    repeated = mx.broadcast_to(logprobs, (DRAWS, VOCABULARY))
    return frequencies(draw(BatchSampler(rows, [0] * DRAWS), repeated))


def oracle_frequencies(logprobs: mx.array, **options: Any) -> np.ndarray:
    mx.random.seed(1)
    sampler = make_sampler(**options)
    return frequencies(sampler(mx.broadcast_to(logprobs, (DRAWS, VOCABULARY))).tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.7},
        {"temperature": 1.5, "top_k": 5},
        {"temperature": 0.9, "min_p": 0.1},
        {"temperature": 1.2, "top_p": 0.9, "top_k": 8, "min_p": 0.02},
    ],
    ids=str,
)
def test_draws_follow_the_distribution_of_mlx_lms_samplers(options: dict[str, Any]) -> None:
    logprobs = made_up_logprobs()
    renamed = {"temp" if name == "temperature" else name: v for name, v in options.items()}
    ours, oracle = our_frequencies(logprobs, **options), oracle_frequencies(logprobs, **renamed)
    assert np.abs(ours - oracle).max() < 5 * math.sqrt(0.5 / DRAWS)
    if len(options) > 1:
        assert set(np.flatnonzero(ours)) == set(np.flatnonzero(oracle))
        assert np.count_nonzero(ours) < VOCABULARY


def test_temperature_zero_is_the_argmax() -> None:
    logprobs = made_up_logprobs(rows=64)
    sampler = BatchSampler([Sampling(seed=i) for i in range(64)], [0] * 64)
    assert draw(sampler, logprobs) == mx.argmax(logprobs, axis=-1).tolist()


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}], ids=str)
def test_a_filter_that_leaves_one_token_is_the_argmax(options: dict[str, Any]) -> None:
    logprobs = made_up_logprobs(rows=64)
    rows = [Sampling(temperature=1.0, seed=i, **options) for i in range(64)]
    assert draw(BatchSampler(rows, [0] * 64), logprobs) == mx.argmax(logprobs, axis=-1).tolist()


def test_top_k_keeps_exactly_k_tokens_where_many_are_equal() -> None:
    flat = mx.full((1, VOCABULARY), -math.log(VOCABULARY))
    assert np.count_nonzero(our_frequencies(flat, temperature=1.0, top_k=3)) == 3


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    logprobs = made_up_logprobs(rows=3)
    mine = Sampling(temperature=1.0, seed=7)
    filtered = Sampling(temperature=0.8, seed=8, top_p=0.8)
    greedy = Sampling()
    alone = BatchSampler([mine], [0])
    together = BatchSampler([filtered, greedy, mine], [3, 0, 0])
    for _ in range(20):
        expected = draw(alone, logprobs[:1])[0]
        assert draw(together, mx.stack([logprobs[1], logprobs[2], logprobs[0]]))[2] == expected


def test_a_row_goes_on_elsewhere_with_the_draws_it_would_have_made() -> None:
    logprobs = made_up_logprobs()
    row = Sampling(temperature=1.0, seed=3, top_k=20)
    whole, first = BatchSampler([row], [0]), BatchSampler([row], [0])
    expected = [draw(whole, logprobs)[0] for _ in range(12)]
    tokens = [draw(first, logprobs)[0] for _ in range(5)]
    second = BatchSampler([Sampling(temperature=0.5, seed=1), row], [9, first.indices[0]])
    tokens += [draw(second, mx.concatenate([logprobs, logprobs]))[1] for _ in range(7)]
    assert tokens == expected


def test_keys_differ_for_every_seed_and_index() -> None:
    seeds = np.array([0, 1, 2**64 - 1, 2**32], dtype=np.uint64)
    keys = np.concatenate([row_keys(seeds, [index] * 4) for index in range(1000)])
    assert len({tuple(key) for key in keys.tolist()}) == 4000


def test_a_row_without_a_distribution_fails_alone() -> None:
    logits = np.zeros((5, VOCABULARY), dtype=np.float32)
    logits[1, 9] = np.nan
    logits[2, 9] = np.inf
    logits[3, :] = -np.inf
    logits[4, :49] = -np.inf
    logprobs = mx.array(logits)
    logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
    for row in (Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, top_p=0.5)):
        sampler = BatchSampler([row] * 5, [0] * 5)
        tokens = draw(sampler, logprobs)
        assert sampler.failed.tolist() == [False, True, True, True, False]
        assert all(0 <= token < VOCABULARY for token in tokens)
        assert tokens[4] == 49


def run_penalties(processor: Any, prompt: list[int], generated: list[int]) -> np.ndarray:
    """What the processor makes of fixed logits once `generated` was appended, token by token."""
    random = np.random.default_rng(5)
    fixed = random.normal(0, 1, (1, VOCABULARY)).astype(np.float32)
    for count in range(len(generated) + 1):
        tokens = mx.array(prompt + generated[:count])
        shaped = processor(tokens, mx.array(fixed))
    return np.array(shaped)


PROMPT, GENERATED = [3, 4, 4, 9], [7, 7, 3, 11, 7]


def test_repetition_is_that_of_mlx_lm_over_the_whole_context() -> None:
    (oracle,) = make_logits_processors(repetition_penalty=1.3, repetition_context_size=1000)
    (ours,) = penalties(Sampling(repetition_penalty=1.3), token_ids(PROMPT))
    expected = run_penalties(oracle, PROMPT, GENERATED)
    np.testing.assert_allclose(run_penalties(ours, PROMPT, GENERATED), expected, rtol=1e-6)


def test_repetition_sees_reused_tokens_that_this_batch_never_ran() -> None:
    (ours,) = penalties(Sampling(repetition_penalty=1.3), token_ids(PROMPT))
    (oracle,) = make_logits_processors(repetition_penalty=1.3, repetition_context_size=1000)
    expected = run_penalties(oracle, PROMPT, GENERATED)
    np.testing.assert_allclose(run_penalties(ours, PROMPT[-1:], GENERATED), expected, rtol=1e-6)


def test_presence_and_frequency_look_at_generated_tokens_only() -> None:
    options = {"presence_penalty": 0.7, "frequency_penalty": 0.4}
    (ours,) = penalties(Sampling(**options), token_ids(PROMPT))
    plain = run_penalties(lambda _, logits: logits, PROMPT, GENERATED)
    expected = plain.copy()
    for token in set(GENERATED):
        expected[0, token] -= 0.7 + 0.4 * GENERATED.count(token)
    np.testing.assert_allclose(run_penalties(ours, PROMPT, GENERATED), expected, rtol=1e-5)


def test_logit_bias_is_added_and_a_token_named_twice_gets_both() -> None:
    (ours,) = penalties(Sampling(logit_bias=((5, 2.0), (6, -100.0), (5, 1.0))), token_ids(PROMPT))
    plain = run_penalties(lambda _, logits: logits, PROMPT, GENERATED)
    expected = plain.copy()
    expected[0, 5] += 3
    expected[0, 6] -= 100
    np.testing.assert_allclose(run_penalties(ours, PROMPT, GENERATED), expected, rtol=1e-6)


def test_a_row_without_penalties_has_no_processor() -> None:
    assert penalties(Sampling(temperature=0.7, top_p=0.9, seed=4), token_ids(PROMPT)) == ()


@pytest.mark.parametrize(
    ("sampling", "context"),
    [
        (Sampling(logit_bias=((VOCABULARY, 1.0),)), PROMPT),
        (Sampling(logit_bias=((-1, 1.0),)), PROMPT),
        (Sampling(repetition_penalty=1.1), [VOCABULARY + 7]),
    ],
)
def test_a_penalty_that_cannot_be_applied_marks_itself(
    sampling: Sampling, context: list[int]
) -> None:
    processor = Penalties(sampling, token_ids(context))
    logits = made_up_logprobs()
    assert processor(mx.array(context), logits) is logits
    assert processor.error is not None
    assert "outside the vocabulary" in processor.error
