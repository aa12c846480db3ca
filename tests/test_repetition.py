"""Loops of a model are told from what is written on purpose."""

import pytest

from daemon.repetition import (
    EVERY_TOKENS,
    LIMITED_TOKENS,
    MAX_PERIOD,
    MIN_PERIODS,
    MIN_TOKENS,
    is_endless,
)


def looked_at(tokens: list[int], *, is_limited: bool = False) -> int | None:
    """After how many tokens an answer that goes on like this is ended."""
    lengths = range(1, len(tokens) + 1)
    return next((n for n in lengths if is_endless(tokens[:n], is_limited=is_limited)), None)


def phrase(period: int) -> list[int]:
    return [1000 + each for each in range(period)]


@pytest.mark.parametrize("period", [1, 12, 50, MAX_PERIOD])
def test_a_phrase_without_end_is_found_soon_whatever_came_before(period: int) -> None:
    start = list(range(777))
    run = max(MIN_TOKENS, period * MIN_PERIODS)
    ended = looked_at(start + phrase(period) * (2 * run // period))
    assert ended is not None
    assert len(start) + run <= ended < len(start) + run + EVERY_TOKENS + period


def test_a_client_that_sets_a_limit_gets_four_times_as_much() -> None:
    ended = looked_at(phrase(12) * 1000, is_limited=True)
    assert ended is not None
    assert LIMITED_TOKENS <= ended < LIMITED_TOKENS + EVERY_TOKENS


@pytest.mark.parametrize("row_tokens", [5, 20, 64, 200])
def test_a_table_of_thirty_equal_rows_is_written_to_its_end(row_tokens: int) -> None:
    assert looked_at([*range(100), *phrase(row_tokens) * 30, *range(200)]) is None


def test_what_changes_a_little_each_time_is_no_loop() -> None:
    numbered = [token for row in range(2_000) for token in (*phrase(11), row)]
    assert looked_at(numbered) is None


def test_a_loop_that_was_left_is_none_any_more() -> None:
    left = phrase(12) * (MIN_TOKENS // 12 - 1) + list(range(MIN_TOKENS))
    assert looked_at(left) is None


def test_longer_periods_than_are_looked_for_are_let_be() -> None:
    assert looked_at(phrase(MAX_PERIOD + 1) * 40) is None
