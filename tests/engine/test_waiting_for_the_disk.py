"""A turn waits for its files; nobody else does, and nothing is waited for in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemon.errors import ModelUnavailable
from daemon.fetches import PATIENCE_SECONDS
from daemon.prefix_cache.cache import Match, PrefixCache
from daemon.turns import Phase
from mlx_backend.messages import CacheKind, token_ids
from tests.engine.harness import every_caching_kind, words
from tests.engine.slow_disk import SlowDisk, filled, restarted

LONG = words(6_000, 1)


@every_caching_kind
def test_while_one_waits_for_the_disk_nothing_is_done_for_it_and_others_are_served(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    waiting = disk.submit(LONG)
    disk.work()
    assert waiting.phase is Phase.WAITING
    assert not disk.inference.has_work
    other = disk.submit(words(500, 2))
    disk.work()
    assert other.phase is Phase.DONE
    assert waiting.phase is Phase.WAITING
    disk.finish()
    assert waiting.phase is Phase.DONE
    assert waiting.usage.read <= 16
    for turn in (waiting, other):
        disk.expect_right(turn)


@every_caching_kind
def test_between_two_steps_of_a_decoding_row_few_files_are_copied_in(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    decoding = disk.submit(words(100, 2))
    while decoding.phase is not Phase.DECODING:
        disk.once()
    turn = disk.submit(LONG)
    steps = 0
    while turn.phase is Phase.WAITING:
        disk.once()
        steps += 1
        assert disk.read() <= 2, "a decoding row waited for more"
    assert steps >= 3, "nothing was read in"
    disk.finish()
    assert turn.usage.read <= 16


@every_caching_kind
def test_where_nobody_decodes_files_are_read_ahead(kind: CacheKind, tmp_path: Path) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    disk.submit(LONG)
    disk.work()
    assert disk.read() > 4


@every_caching_kind
def test_a_prompt_that_waits_for_the_disk_can_be_cancelled(kind: CacheKind, tmp_path: Path) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    turn = disk.submit(LONG)
    disk.work()
    disk.read(3)
    disk.inference.cancel(turn)
    assert turn.phase is Phase.CANCELLED
    assert not disk.inference.rows.reserved_bytes
    assert not disk.inference.turns
    disk.cache.check()
    came = disk.cache.peek(disk.submit(LONG).tokens)
    assert came == (3 * 1024 if kind is CacheKind.SLICEABLE else 0), "what came was lost"
    disk.finish()  # also of the files that were on their way then
    disk.cache.check()
    assert disk.backend.counters.tokens_read <= 16


@every_caching_kind
def test_nobody_waits_for_ever_for_a_disk_of_which_nothing_is_heard(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    turn = disk.submit(LONG)
    disk.work()
    disk.read(1)
    assert disk.inference.fetches.next_expiry() == disk.clock() + PATIENCE_SECONDS
    disk.clock.now += PATIENCE_SECONDS
    disk.inference.fetches.expire(disk.clock())
    disk.work()
    assert turn.phase is Phase.DONE
    disk.expect_right(turn)
    assert turn.reason is not None
    assert "More is on disk, up to token 5,999, which would" in turn.reason.sentence
    assert turn.usage.reused == (1024 if kind is CacheKind.SLICEABLE else 0), "what came is lost"
    assert disk.read() > 0, "nothing comes late"
    disk.cache.check()
    assert not disk.inference.rows.reserved_bytes


def test_of_all_who_come_to_a_silent_disk_only_the_first_wait(tmp_path: Path) -> None:
    prompts = [words(6_000, seed) for seed in range(3)]
    filled(tmp_path, CacheKind.SLICEABLE, *prompts)
    disk = restarted(tmp_path, CacheKind.SLICEABLE)
    first = disk.submit(prompts[0])
    disk.work()
    disk.clock.now += PATIENCE_SECONDS
    disk.inference.fetches.expire(disk.clock())
    second = disk.submit(prompts[1])
    disk.work()
    assert (first.phase, second.phase) == (Phase.DONE, Phase.DONE), "each waits anew"
    disk.read()  # it is back
    third = disk.submit(prompts[2])
    disk.finish()
    assert third.usage.read <= 16
    for turn in (first, second, third):
        disk.expect_right(turn)


@every_caching_kind
def test_who_is_not_yet_the_next_is_as_patient_as_the_disk_is_busy(
    kind: CacheKind, tmp_path: Path
) -> None:
    prompts = [words(6_000, seed) for seed in range(2)]
    filled(tmp_path, kind, *prompts)
    disk = restarted(tmp_path, kind)
    speaking = disk.submit(words(20, 9), 5_000)  # so that few files are asked for at a time
    while speaking.phase is not Phase.DECODING:
        disk.once()
    turns = [disk.submit(prompt) for prompt in (*prompts, prompts[0])]
    for _ in range(20):
        disk.once()
        disk.clock.now += PATIENCE_SECONDS / 2
        disk.inference.fetches.expire(disk.clock())
        disk.read(1)
    disk.inference.cancel(speaking)
    disk.finish()
    assert all(turn.usage.read <= 16 for turn in turns), "they gave up a disk that was at work"


def test_what_is_on_disk_is_waited_for_until_that_is_known(tmp_path: Path) -> None:
    filled(tmp_path, CacheKind.SLICEABLE, LONG)
    disk = SlowDisk(tmp_path)
    turn, short = disk.submit(LONG), disk.submit(words(8, 2))
    disk.work()
    assert (turn.phase, short.phase) == (Phase.WAITING, Phase.DONE)
    disk.look_through()
    disk.finish()
    assert turn.usage.read <= 16


@pytest.mark.parametrize("first", ["writer", "reader"])
def test_neither_thread_has_to_be_the_first_to_know_it(first: str, tmp_path: Path) -> None:
    filled(tmp_path, CacheKind.SLICEABLE, LONG)
    disk = SlowDisk(tmp_path)
    turn = disk.submit(LONG)
    disk.work()
    for act in (disk.write, disk.read) if first == "writer" else (disk.read, disk.write):
        act()
        disk.work()
    disk.finish()
    assert turn.phase is Phase.DONE
    assert turn.usage.read <= 16


@every_caching_kind
def test_what_is_still_being_written_is_waited_for(kind: CacheKind, tmp_path: Path) -> None:
    disk = restarted(tmp_path, kind)
    disk.tell(LONG)
    for kept in list(disk.cache.states()):
        assert disk.archive.save(kept)
    disk.cache.clear()
    turn = disk.submit(LONG)
    disk.work()
    assert turn.phase is Phase.WAITING
    assert not disk.read(), "a file is read before it is written"
    disk.write()
    disk.finish()
    assert turn.usage.read <= 16
    disk.expect_right(turn)


@every_caching_kind
def test_of_two_that_want_the_same_files_one_reads_them(kind: CacheKind, tmp_path: Path) -> None:
    other = LONG[:5_500] + words(600, 3)
    filled(tmp_path, kind, LONG, other)
    disk = restarted(tmp_path, kind)
    turns = [disk.submit(prompt) for prompt in (other, LONG)]
    disk.finish()
    assert len(disk.names_read) == len(set(disk.names_read)), "a file was read twice"
    for turn in turns:
        assert turn.usage.read <= 16
        disk.expect_right(turn)


@every_caching_kind
def test_when_who_reads_for_others_leaves_they_read_on(kind: CacheKind, tmp_path: Path) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    turns = [disk.submit(LONG) for _ in range(3)]
    disk.work()
    disk.read(2)
    disk.inference.cancel(turns[0])
    disk.finish()
    for turn in turns[1:]:
        assert turn.phase is Phase.DONE
        assert turn.usage.read <= 16
    disk.cache.check()


class BrokenTree(PrefixCache):
    """Cannot be asked to add or to give back anything once it `is_broken`."""

    is_broken = False

    def insert(self, *args: Any, **more: Any) -> bool:
        assert not self.is_broken
        return super().insert(*args, **more)

    def release(self, match: Match) -> None:
        assert not self.is_broken
        super().release(match)


@pytest.mark.parametrize("is_tree_sound", [True, False])
@every_caching_kind
def test_a_model_that_breaks_leaves_nothing_behind_of_those_who_wait(
    kind: CacheKind, is_tree_sound: bool, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind, cache_class=BrokenTree)
    turns = [disk.submit(LONG) for _ in range(2)]
    disk.work()
    disk.read(1)
    assert isinstance(disk.cache, BrokenTree)
    disk.cache.is_broken = not is_tree_sound
    disk.inference.abandon(ModelUnavailable("it broke"), is_tree_sound)
    assert [turn.phase for turn in turns] == [Phase.FAILED] * 2
    assert not disk.inference.rows.reserved_bytes
    disk.read()
    disk.cache.check()


@pytest.mark.parametrize(
    ("tick", "file_seconds", "is_restored"),
    [(1e-9, 1.0, False), (1e-9, 1e-3, True), (100.0, 1.0, True)],
)
def test_what_the_model_reads_sooner_than_the_disk_is_left_there(
    tick: float, file_seconds: float, is_restored: bool, tmp_path: Path
) -> None:
    filled(tmp_path, CacheKind.SLICEABLE, LONG)
    other = words(3_000, 2)
    filled(tmp_path, CacheKind.SLICEABLE, other)
    disk = restarted(tmp_path, CacheKind.SLICEABLE, tick=tick, file_seconds=file_seconds)
    first = disk.tell(other + words(50, 3))
    assert first.usage.reused >= 3_000, "what is not known yet was taken for slow"
    turn = disk.tell(LONG)
    assert turn.usage.reused == (5_999 if is_restored else 0)
    assert turn.reason is not None
    is_left = "More is on disk, up to token 5,999, which would" in turn.reason.sentence
    assert is_left is not is_restored


@every_caching_kind
def test_who_has_most_on_disk_has_least_to_read(kind: CacheKind, tmp_path: Path) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    long, on_disk = disk.submit(words(3_000, 2)), disk.submit(LONG)
    disk.once()
    assert on_disk.awaits_disk, "its files are asked for only once the other one was read"
    assert long.phase is Phase.READING
    disk.read()
    disk.once()
    disk.once()
    assert on_disk.phase is Phase.DECODING
    assert long.phase is Phase.READING


def test_what_is_used_from_memory_is_used_on_disk_too(tmp_path: Path) -> None:
    one, other, third = (words(900, seed) for seed in range(3))
    disk = SlowDisk(tmp_path, disk_bytes=50_000)  # for two of them
    disk.look_through()
    for prompt in (one, other):
        disk.tell(prompt)
        disk.save()
    disk.tell([*one, *words(20, 4)])
    disk.tell(third)
    assert disk.archive.save(next(disk.cache.states()))
    assert disk.archive.find(token_ids(one), 900).length == 900
    assert disk.archive.find(token_ids(other), 900).length == 0
