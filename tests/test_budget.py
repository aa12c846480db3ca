"""The arithmetic of rows: rooms in tokens, rows in bytes, prompts that can never run."""

from __future__ import annotations

import pytest

from daemon.budget import Budget
from mlx_backend.messages import CacheKind, ModelInfo


def info(**sizes: int) -> ModelInfo:
    return ModelInfo(
        name="m",
        path="/m",
        identity="m",
        cache_kind=CacheKind.CHECKPOINTED,
        cache_classes=(),
        vocabulary_size=10,
        context_size=100_000,
        stop_ids=frozenset(),
        weight_bytes=0,
        span_token_bytes=sizes.get("token", 100),
        checkpoint_bytes=sizes.get("checkpoint", 0),
        ring_token_bytes=sizes.get("ring", 0),
    )


@pytest.mark.parametrize(
    ("tokens", "to_come", "room"),
    [(500, 100_000, 1_524), (500, 1_024, 1_524), (500, 7, 507), (0, 5_000, 1_024)],
)
def test_a_row_has_room_for_what_it_holds_and_one_step(
    tokens: int, to_come: int, room: int
) -> None:
    assert Budget.without_limit(info()).row_room(tokens, to_come) == room


def test_a_row_takes_whole_buffers_and_what_does_not_grow() -> None:
    budget = Budget.of_model(info(checkpoint=7_000, ring=10), None, chunk_tokens=512)
    assert budget.row_bytes(1) == 256 * 100 + 7_000 + 5_120
    assert budget.row_bytes(256) == budget.row_bytes(1)
    assert budget.row_bytes(257) == 512 * 100 + 7_000 + 5_120


def test_what_is_left_can_be_less_than_nothing_and_no_limit_leaves_no_number() -> None:
    assert Budget.of_model(info(), 1_000).left(600, 300) == 100
    assert Budget.of_model(info(), 1_000).left(600, 700) == -300
    assert Budget.without_limit(info()).left(10**15, 10**15) is None


def test_only_what_could_not_run_beside_nothing_is_refused() -> None:
    exact = Budget.of_model(info(), 2_048 * 100)
    assert exact.refusal(1_024, 50_000) is None
    refusal = exact.refusal(1_025, 50_000)
    assert refusal is not None
    assert "1025 tokens" in refusal
    assert exact.refusal(2_000, 48) is None
    assert Budget.without_limit(info()).refusal(10**9, 10**9) is None
