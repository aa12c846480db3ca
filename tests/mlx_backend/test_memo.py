"""A memo that stays within its bounds and keeps what is used."""

from __future__ import annotations

from mlx_backend.memo import Memo


def test_it_forgets_what_was_not_used_and_keeps_what_was() -> None:
    memo: Memo[int, int] = Memo(10)
    memo.put(0, 100)
    for number in range(1, 50):
        memo.put(number, number)
        assert memo.get(0) == 100
    assert memo.get(1) is None
    assert memo.get(49) == 49


def test_it_holds_no_more_than_its_size() -> None:
    memo: Memo[str, str] = Memo(100, lambda key, value: len(value))
    for number in range(50):
        memo.put(str(number), "x" * 10)
    kept = [key for key in map(str, range(50)) if key in memo._young or key in memo._old]
    assert 5 <= len(kept) <= 10


def test_one_too_large_for_it_is_given_back_until_the_next() -> None:
    memo: Memo[str, str] = Memo(10, lambda key, value: len(value))
    memo.put("large", "x" * 100)
    assert memo.get("large") == "x" * 100
    memo.put("a", "b")
    memo.put("c", "d" * 5)
    assert memo.get("large") is None
