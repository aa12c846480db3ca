"""What is read in from disk has its memory set aside, and takes none from what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daemon.turns import Phase, Turn
from mlx_backend.messages import CacheKind
from tests.engine.harness import every_caching_kind, words
from tests.engine.slow_disk import SlowDisk, filled, restarted
from tests.fakes import Script

TOKEN_BYTES = 16
ONE, OTHER = words(6_000, 1), words(6_000, 2)
ONE_BYTES = 6_000 * (TOKEN_BYTES + 4)
ROW_BYTES = 6_400 * TOKEN_BYTES


def finish_within(disk: SlowDisk, budget_bytes: int) -> None:
    """Go on to the end, a file at a time; what is held never exceeds the budget."""
    while disk.inference.turns:
        while disk.inference.has_work:
            disk.once()
            held = disk.inference.rows.reserved_bytes + disk.cache.status().bytes
            assert held <= budget_bytes
        if disk.inference.turns:
            assert disk.read(1), "it waits for nothing"


def done(disk: SlowDisk, *turns: Turn) -> None:
    for turn in turns:
        assert turn.phase is Phase.DONE, turn.error
        disk.expect_right(turn)


@every_caching_kind
def test_rows_cache_and_what_is_read_in_stay_within_the_budget(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE, OTHER)
    budget = 2 * (ONE_BYTES + ROW_BYTES) + 20_000
    disk = restarted(tmp_path, kind, budget_bytes=budget)
    turns = [disk.submit(prompt) for prompt in (ONE, OTHER, words(3_000, 3))]
    finish_within(disk, budget)
    done(disk, *turns)
    assert [turn.usage.read for turn in turns[:2]] == [1, 1] or kind is CacheKind.CHECKPOINTED
    assert max(turn.usage.read for turn in turns[:2]) <= 16


@every_caching_kind
def test_where_there_is_room_for_one_at_a_time_the_others_wait(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE, OTHER)
    budget = ONE_BYTES + ROW_BYTES + 10_000
    disk = restarted(tmp_path, kind, budget_bytes=budget)
    turns = [disk.submit(prompt) for prompt in (ONE, OTHER, words(5_000, 3))]
    finish_within(disk, budget)
    done(disk, *turns)
    assert max(turn.usage.read for turn in turns[:2]) <= 16


@every_caching_kind
def test_who_finds_no_room_beside_what_is_read_in_waits_for_it(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE)
    budget = ONE_BYTES + ROW_BYTES + 10_000
    disk = restarted(tmp_path, kind, budget_bytes=budget)
    first = disk.submit(ONE)
    disk.work()
    second = disk.submit(words(11_000, 3))
    disk.work()
    assert second.phase is Phase.WAITING, second.error
    assert not disk.inference.has_work, "it looks for room again and again"
    finish_within(disk, budget)
    done(disk, first, second)
    assert first.usage.read <= 16


@every_caching_kind
def test_a_row_that_grows_is_given_what_was_set_aside_for_the_disk(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE)
    text = words(10_000, 4)
    script = Script(lambda state, index: text[index], yields=False)
    budget = ONE_BYTES + ROW_BYTES + 20_000
    disk = restarted(tmp_path, kind, budget_bytes=budget, script=script)
    speaking = disk.submit(words(500, 2), 9_000)
    while speaking.phase is not Phase.DECODING:
        disk.once()
    waiting = disk.submit(ONE)
    while speaking.phase is Phase.DECODING:
        disk.once()  # the disk does nothing meanwhile
    assert speaking.generated == 9_000, "its answer was ended for want of memory"
    finish_within(disk, budget)
    done(disk, speaking, waiting)
    assert waiting.usage.read <= 16


@every_caching_kind
@pytest.mark.parametrize("rows", [1, 3], ids=["one", "three"])
def test_of_many_that_memory_has_no_room_for_at_once_each_is_read_in_once(
    kind: CacheKind, rows: int, tmp_path: Path
) -> None:
    prompts = [words(5_000 + 17 * seed, seed) for seed in range(8)]
    filled(tmp_path, kind, *prompts)
    disk = restarted(tmp_path, kind, budget_bytes=rows * 2 * 90_000 + 40_000)
    turns = [disk.submit(prompt) for prompt in prompts]
    disk.finish()
    done(disk, *turns)
    assert len(disk.names_read) == len(set(disk.names_read)), "it left again before it was used"
    assert all(turn.usage.read <= 16 for turn in turns)


@every_caching_kind
def test_what_was_set_aside_goes_where_another_model_needs_the_memory(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE)
    disk = restarted(tmp_path, kind, budget_bytes=1 << 20)
    turn = disk.submit(ONE)
    disk.work()
    disk.read()
    disk.inference.fetches.settle()
    rows = disk.inference.rows
    rows.budget = replace(rows.budget, max_bytes=ROW_BYTES + ONE_BYTES // 2)
    disk.finish()
    done(disk, turn)


@every_caching_kind
def test_who_was_read_in_and_finds_still_more_to_wait_for_waits_for_that(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE[:3_000])
    other = restarted(tmp_path / "another", kind)
    other.tell(ONE)
    disk = restarted(tmp_path, kind, budget_bytes=1 << 20)
    turn = disk.submit(ONE)
    disk.work()
    disk.read()
    disk.inference.fetches.settle()
    assert all(disk.archive.save(kept) for kept in other.cache.states())
    disk.cache.clear()
    disk.work()
    assert turn.phase is Phase.WAITING
    disk.write()
    disk.finish()
    done(disk, turn)
    assert turn.usage.read <= 16


def test_of_a_prompt_too_large_to_be_kept_as_much_is_read_in_as_fits(tmp_path: Path) -> None:
    filled(tmp_path, CacheKind.SLICEABLE, ONE)
    budget = ONE_BYTES // 2 + ROW_BYTES
    disk = restarted(tmp_path, CacheKind.SLICEABLE, budget_bytes=budget)
    turn = disk.submit(ONE)
    finish_within(disk, budget)
    done(disk, turn)
    assert 2_500 < turn.usage.reused < 3_500
    assert len(disk.names_read) == 4, "more was read than can be kept"
    assert disk.backend.counters.tokens_read == turn.usage.read - 1


@pytest.mark.parametrize("entries", [None, 0])
@every_caching_kind
def test_where_no_entries_are_shared_what_came_is_its_sessions(
    kind: CacheKind, entries: int | None, tmp_path: Path
) -> None:
    filled(tmp_path, kind, ONE)
    disk = restarted(tmp_path, kind, max_entries=entries)
    assert disk.tell([*ONE, *words(50, 2)]).usage.read <= 50 + 16
    disk.cache.check()
    assert (disk.cache.status().entries == 0) is (entries == 0)
