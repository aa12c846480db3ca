"""The disk tier between an engine that saves and a disk that is slow, full or broken."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from daemon.disk_cache.files import Content, FileKind, StoredFile, key_of
from daemon.disk_cache.jobs import (
    Checked,
    Delete,
    Read,
    ReadDone,
    ReadFailed,
    Scan,
    Touch,
    Write,
)
from daemon.disk_cache.limits import DiskLimits
from mlx_backend.messages import CacheKind, token_ids
from tests.disk_cache.fake_disk import (
    DAY_SECONDS,
    DISK_BYTES,
    Disk,
    OnDisk,
    Run,
    content,
    ready,
)
from tests.disk_cache.files_on_disk import lacking

ONE = 10 * 1000 + 40 + 500
"""What ten tokens take on the fake disk."""


def found_tokens(run: Run, ids: list[int] | range, identity: str = "a") -> int:
    index = run.tier.index(identity)
    return index.find(token_ids(ids), CacheKind.SLICEABLE, len(ids)).length


def test_what_is_saved_is_written_and_found_by_the_next_run():
    disk = Disk()
    run = ready(disk, "a")
    assert run.save("a", range(30), 10) == [True] * 3
    assert run.tier.pending_bytes >= 3 * ONE
    run.work()
    run.check_index("a")
    assert disk.nbytes == 3 * ONE
    again = ready(disk, "a")
    again.check_index("a")
    assert found_tokens(again, range(30)) == 30
    assert again.save("a", range(30), 10) == []


def test_what_is_there_already_is_not_written_again():
    run = ready(Disk(), "a")
    [file] = lacking(run.tier.index("a"), range(10))
    assert run.tier.save(file, content(file), is_dear=True)
    assert run.tier.save(file, content(file), is_dear=True)
    run.work()
    assert run.tier.save(file, content(file), is_dear=True)
    run.work()
    assert run.disk.written_today == ONE


def test_nothing_is_written_of_a_model_before_its_files_are_known():
    run = Run(Disk())
    assert not run.tier.is_ready("a")
    assert run.save("a", range(10)) == [False]
    run.work()
    assert run.tier.is_ready("a")
    assert not run.tier.is_ready("b")
    assert run.save("a", range(10)) == [True]


def test_a_model_is_ready_once_the_folder_was_looked_through_and_its_files_read_in():
    disk = Disk()
    first = ready(disk, "a")
    first.save("a", range(20), 10)
    first.work()
    run = ready(disk)
    run.tier.index("a")
    assert run.save("a", range(20), 20) == [False], "it may be there already"
    run.work()
    run.check_index("a")
    hasty = Run(disk)
    hasty.tier.index("a")
    scanned = disk.do(Scan("a"))
    assert scanned is not None
    hasty.tier.hear(scanned)
    assert not hasty.tier.is_ready("a")


def test_a_file_that_says_what_others_say_already_is_deleted():
    disk = Disk()
    first = ready(disk, "a")
    first.save("a", range(20), 10)
    first.work()
    [one, two] = disk.files.values()
    key = key_of("a", [token_ids(range(15))])
    tokens = token_ids(range(10, 15))
    twice = StoredFile("a", FileKind.BLOCK, key, one.file.key, 10, 15, tokens)
    disk.files["a", twice.name] = OnDisk(twice, Content(()), 100, disk.now)
    run = ready(disk, "a")
    run.check_index("a")
    assert found_tokens(run, range(20)) == 20
    assert set(disk.files.values()) == {one, two}


def test_a_models_files_are_read_in_once():
    run = ready(Disk(), "a")
    assert run.tier.index("a") is run.tier.index("a")
    run.work()
    assert [job for job in run.disk.done if isinstance(job, Scan)] == [Scan("a")]


def test_arrays_are_kept_by_the_tier_until_it_hears_that_they_are_written():
    run = ready(Disk(), "a")
    [file] = lacking(run.tier.index("a"), range(10))
    handed_over = content(file)
    arrays = weakref.ref(handed_over.arrays[0].parts[0])
    run.tier.save(file, handed_over, is_dear=True)
    [write] = [job for job in iter(run._writer.poll, None) if isinstance(job, Write)]
    result = Disk().do(write)
    del handed_over, write
    gc.collect()
    assert arrays() is not None
    assert result is not None
    run.tier.hear(result)
    gc.collect()
    assert arrays() is None


# Limits


def test_the_cache_stays_within_its_size_what_is_used_least_goes():
    run = ready(Disk(), "a", max_bytes=5 * ONE + 5000)
    for start in range(0, 900, 100):
        assert run.save("a", range(start, start + 10)) == [True]
        if start == 400:
            run.tier.touch(
                "a", run.tier.index("a").find(token_ids(range(10)), "sliceable", 10).blocks
            )
        run.work()
    run.check_index("a")
    left = [start for start in range(0, 900, 100) if found_tokens(run, range(start, start + 10))]
    assert left == [0, 500, 600, 700, 800]
    assert run.tier.status().evicted_files == 4


def test_what_goes_is_deleted_before_what_comes_is_written():
    disk = Disk()
    run = ready(disk, "a", max_bytes=2 * ONE + 5000)
    for start in (0, 100, 200):
        run.save("a", range(start, start + 10))
        run.work()
    kinds = [type(job) for job in disk.done if isinstance(job, Write | Delete)]
    assert kinds == [Write, Write, Delete, Write]


def test_a_chain_gives_way_from_its_end():
    run = ready(Disk(), "a", max_bytes=4 * ONE + 5000)
    run.save("a", range(40), 10)
    run.work()
    run.save("a", range(100, 110))
    run.work()
    assert found_tokens(run, range(40)) == 30
    run.check_index("a")


def test_a_conversation_that_is_larger_than_the_cache_keeps_its_beginning():
    run = ready(Disk(), "a", max_bytes=3 * ONE + 10_000)
    run.save("a", range(500, 510))
    run.work()
    for _ in range(3):
        run.save("a", range(60), 10)
        run.work()
        assert found_tokens(run, range(60)) == 30
    assert not found_tokens(run, range(500, 510))
    run.check_index("a")


def test_what_a_conversation_goes_on_from_does_not_go_for_it():
    run = ready(Disk(), "a", max_bytes=3 * ONE + 5000)
    for start in (0, 100, 200):
        run.save("a", range(start, start + 10))
        run.work()
    assert run.save("a", range(20), 10) == [True]
    run.work()
    assert found_tokens(run, range(20)) == 20
    assert not found_tokens(run, range(100, 110))


def test_for_a_file_that_cannot_fit_nothing_goes():
    run = ready(Disk(), "a", max_bytes=3 * ONE)
    run.save("a", range(10))
    run.work()
    assert run.save("a", range(100, 200)) == [False]
    assert not run.tier.may_save(100 * ONE, is_dear=True)
    assert run.tier.status().skipped_writes == 2
    run.work()
    assert found_tokens(run, range(10)) == 10


def test_the_number_of_files_is_limited():
    run = ready(Disk(), "a", max_files=3)
    for start in range(0, 500, 100):
        run.save("a", range(start, start + 10))
        run.work()
    assert len(run.disk.files) == 3
    run.check_index("a")


def test_limits_hold_across_models_by_use():
    run = ready(Disk(), "a", "b", max_bytes=3 * ONE + 5000)
    for identity, start in (("a", 0), ("b", 0), ("a", 100)):
        run.save(identity, range(start, start + 10))
        run.work()
    run.use("a", range(10))
    run.save("a", range(200, 210))
    run.work()
    assert not found_tokens(run, range(10), "b")
    run.save("b", range(10))
    run.work()
    assert not found_tokens(run, range(100, 110), "a")
    assert found_tokens(run, range(10), "a")


def test_files_of_models_that_are_not_loaded_go_first_the_longest_unused_first():
    disk = Disk()
    run = ready(disk, "a")
    run.save("a", range(10))
    run.work()
    for number in range(5):
        disk.place("old", f"{number}", ONE, used_at=disk.now + 100 - number)
    again = ready(disk, "a", max_bytes=4 * ONE + 5000)
    again.check_limits()
    assert {name for owner, name in disk.files if owner == "old"} == {"0", "1", "2"}
    status = again.tier.status()
    assert (status.usable_bytes, status.unusable_bytes) == (ONE, 3 * ONE)
    again.save("a", range(100, 120), 10)
    again.work()
    assert found_tokens(again, range(10)) == 10
    assert {name for owner, name in disk.files if owner == "old"} == {"0"}
    again.check_index("a")


def test_a_limit_that_became_smaller_holds_from_the_start():
    disk = Disk()
    run = ready(disk, "a")
    run.save("a", range(100), 10)
    run.work()
    again = ready(disk, "a", max_bytes=3 * ONE)
    again.check_limits()
    assert found_tokens(again, range(100)) == 30
    again.check_index("a")


def test_the_floor_of_the_disk_is_kept_when_others_fill_it():
    disk = Disk()
    run = ready(disk, "a", floor_bytes=10 * ONE)
    run.save("a", range(50), 10)
    run.work()
    disk.others_bytes = DISK_BYTES - 13 * ONE
    assert run.save("a", range(100, 110)) == [True]
    run.work()
    assert disk.free_bytes >= 10 * ONE
    assert len(disk.files) == 3
    run.check_index("a")


def test_a_disk_that_others_fill_to_the_last_byte_is_given_room_again():
    disk = Disk()
    run = ready(disk, "a", floor_bytes=10 * ONE)
    run.save("a", range(150), 10)
    run.work()
    disk.others_bytes = DISK_BYTES - disk.nbytes
    run.save("a", range(1000, 1010))
    run.work()
    assert disk.free_bytes >= 10 * ONE
    run.check_index("a")


def test_what_is_pending_counts_against_the_floor():
    disk = Disk(others_bytes=DISK_BYTES - 13 * ONE)
    run = ready(disk, "a", floor_bytes=10 * ONE - 8000)
    assert run.save("a", range(50), 10) == [True] * 3 + [False] * 2
    run.work()
    assert len(disk.files) == 3


def test_where_the_floor_leaves_nothing_nothing_is_kept_until_there_is_room_again():
    disk = Disk(others_bytes=DISK_BYTES - ONE)
    run = ready(disk, "a", floor_bytes=10 * ONE)
    assert run.save("a", range(10)) == [False]
    run.work()
    assert not disk.files
    disk.others_bytes = 0
    assert run.save("a", range(10)) == [False]
    run.work()
    run.seconds += 60
    assert run.save("a", range(10)) == [False]
    run.work()
    assert run.save("a", range(10)) == [True]


def test_a_full_disk_is_asked_now_and_then_only():
    disk = Disk(others_bytes=DISK_BYTES)
    run = ready(disk, "a", floor_bytes=1)
    for _ in range(10):
        run.save("a", range(10))
        run.work()
        run.seconds += 7
    assert sum(isinstance(job, Delete) for job in disk.done) == 2


def test_without_limits_a_share_of_the_free_disk_is_taken_and_a_share_stays_free():
    disk = Disk()
    run = ready(disk, "a", max_bytes=None, floor_bytes=None)
    status = run.tier.status()
    assert status.max_bytes == DISK_BYTES // 5
    assert status.floor_bytes == DISK_BYTES // 10
    run.save("a", range(1000))
    run.work()
    again = ready(disk, "a", max_bytes=None, floor_bytes=None)
    assert again.tier.status().max_bytes == DISK_BYTES // 5


# The day's allowance, and what is pending


def test_beyond_the_days_allowance_nothing_is_written_until_the_next_day():
    disk = Disk()
    run = ready(disk, "a", write_bytes_per_day=3 * ONE + 20_000)
    for start in (0, 100, 200):
        assert run.save("a", range(start, start + 10)) == [True]
        run.work()
    run.save("a", range(300, 310))
    run.work()
    assert run.save("a", range(400, 410)) == [False]
    assert disk.written_today <= run.limits.write_bytes_per_day
    again = ready(disk, "a", write_bytes_per_day=3 * ONE + 20_000)
    assert again.save("a", range(400, 410)) == [False]
    disk.now += DAY_SECONDS
    disk.written_today = 0
    assert again.tier.status().written_today_bytes == 0
    assert again.save("a", range(400, 410)) == [True]


def test_what_is_still_to_be_written_counts_as_written():
    run = ready(Disk(), "a", write_bytes_per_day=3 * ONE + 20_000)
    said = [run.save("a", range(start, start + 10))[0] for start in range(0, 1000, 100)]
    assert said == [True] * 4 + [False] * 6


def test_half_of_the_days_allowance_is_for_what_is_dear():
    run = ready(Disk(), "a", write_bytes_per_day=4 * ONE + 20_000)
    said = []
    for start in range(0, 500, 100):
        said += run.save("a", range(start, start + 10), is_dear=False)
        run.work()
    assert said == [True, True, False, False, False]
    assert run.save("a", range(500, 510)) == [True]


def test_a_write_of_yesterday_does_not_take_of_todays_allowance():
    disk = Disk()
    run = ready(disk, "a", write_bytes_per_day=10 * ONE)
    disk.written_today = 9 * ONE
    run.save("a", range(10))
    disk.now += DAY_SECONDS  # it is done before midnight, and heard after it
    run.work()
    assert run.tier.status().written_today_bytes == ONE
    assert run.save("a", range(100, 110)) == [True]


def test_no_more_waits_for_the_writer_than_is_asked_for():
    run = ready(Disk(), "a", pending_bytes=4 * ONE + 20_000)
    said = [
        run.save("a", range(start, start + 10), is_dear=False)[0] for start in range(0, 500, 100)
    ]
    assert said == [True, True, False, False, False]
    said = [run.save("a", range(start, start + 10))[0] for start in range(500, 1000, 100)]
    assert said == [True, True, True, False, False]
    run.work()
    assert run.save("a", range(0, 10)) == []
    assert run.save("a", range(200, 210), is_dear=False) == [True]


def test_one_file_waits_however_large_it_is():
    run = ready(Disk(), "a", pending_bytes=10)
    assert run.save("a", range(10), is_dear=False) == [True]
    assert run.save("a", range(100, 110)) == [False]


def test_at_rest_any_number_of_files_waits_for_the_writer():
    run = ready(Disk(), "a", pending_bytes=10)
    assert run.save("a", range(100), 10, is_dear=False, at_rest=True) == [True] * 10
    assert run.tier.may_save(ONE, is_dear=False, at_rest=True)
    assert not run.tier.may_save(ONE, is_dear=True)


# What goes wrong


def test_a_write_that_fails_is_out_with_all_that_stands_on_it():
    disk = Disk(failure=lambda file: "broken" if file.start == 10 else "")
    run = ready(disk, "a")
    assert run.save("a", range(40), 10) == [True] * 4
    run.work()
    run.check_index("a")
    assert found_tokens(run, range(40)) == 10
    assert len(disk.files) == 1
    status = run.tier.status()
    assert (status.failed_writes, status.last_failure) == (1, "broken")
    disk.failure = lambda file: ""
    assert run.save("a", range(40), 10) == [True] * 3
    run.work()
    assert found_tokens(run, range(40)) == 40
    run.check_index("a")


def test_what_was_dropped_while_it_was_pending_may_come_again():
    run = ready(Disk(), "a")
    run.save("a", range(20), 10)
    name = run.tier.index("a").find(token_ids(range(20)), CacheKind.SLICEABLE, 20).blocks[0].name
    run.tier.drop("a", name)
    assert run.save("a", range(20), 20) == [True]
    run.work()
    assert found_tokens(run, range(20)) == 20
    run.check_index("a")


def test_after_several_failures_nothing_is_written_for_a_while():
    disk = Disk(failure=lambda file: "broken")
    run = ready(disk, "a")
    for start in range(0, 1000, 100):
        run.save("a", range(start, start + 10))
        run.work()
    assert run.tier.status().failed_writes == 3
    disk.failure = lambda file: ""
    run.seconds += 60
    assert run.save("a", range(10)) == [True]
    run.work()
    assert found_tokens(run, range(10)) == 10


def test_now_and_then_a_write_may_fail():
    disk = Disk(failure=lambda file: "broken" if file.tokens[0] % 300 == 0 else "")
    run = ready(disk, "a")
    for start in range(0, 3000, 100):
        assert run.save("a", range(start, start + 10)) == [True]
        run.work()
    assert run.tier.status().failed_writes == 10


def test_a_write_that_failed_is_not_that_of_the_file_that_came_after_it():
    fails = [True, False, False]
    disk = Disk(failure=lambda file: "broken" if fails.pop(0) else "")
    run = ready(disk, "a")
    run.save("a", range(10))
    name = lacking(ready(Disk(), "a").tier.index("a"), range(10))[0].name
    run.tier.drop("a", name)
    run.save("a", range(20), 10)
    run.work()
    assert found_tokens(run, range(20)) == 20
    run.check_index("a")


def test_a_disk_that_was_fuller_than_known_costs_the_write_and_no_more():
    disk = Disk()
    run = ready(disk, "a", floor_bytes=10 * ONE)
    disk.others_bytes = DISK_BYTES - 10 * ONE
    run.save("a", range(10))
    run.work()
    status = run.tier.status()
    assert (status.skipped_writes, status.failed_writes) == (1, 0)
    run.check_index("a")


def test_a_folder_that_cannot_be_used_keeps_nothing_and_says_why():
    run = ready(Disk(problem="it belongs to another account"), "a")
    assert run.tier.is_ready("a")
    assert run.save("a", range(10)) == [False]
    run.work()
    assert run.save("a", range(10)) == [False], "it was never looked through"
    status = run.tier.status()
    assert not status.is_on
    assert not status.is_scanning
    assert status.last_failure == "it belongs to another account"


def test_of_a_folder_that_could_not_be_looked_through_nothing_is_deleted():
    disk = Disk()
    run = ready(disk, "a", floor_bytes=ONE)
    run.save("a", range(50), 10)
    run.work()
    disk.problem = "too many open files"
    again = ready(disk, "a", floor_bytes=ONE)
    assert found_tokens(again, range(50)) == 50
    assert len(disk.files) == 5


def test_a_disk_that_cannot_say_how_free_it_is_is_no_reason_to_delete():
    disk = Disk()
    run = ready(disk, "a", floor_bytes=ONE)
    run.save("a", range(10))
    run.work()
    disk.total_bytes = 0  # so it cannot say, and writes nothing
    run.save("a", range(100, 110))
    run.work()
    assert found_tokens(run, range(10)) == 10


# Reading


def heard_of(run: Run, ids: range, identity: str = "a") -> list[ReadDone | ReadFailed]:
    index = run.tier.index(identity)
    heard: list[ReadDone | ReadFailed] = []
    for file in index.find(token_ids(ids), CacheKind.SLICEABLE, len(ids)).blocks:
        run.tier.read(file, heard.append)
    run.work()
    return heard


def test_what_is_read_comes_to_who_asked_for_it():
    run = ready(Disk(), "a")
    run.save("a", range(30), 10)
    run.work()
    assert run.tier.read_bytes_per_second is None
    heard = heard_of(run, range(30))
    assert [result.file.start for result in heard] == [0, 10, 20]
    for result in heard:
        assert isinstance(result, ReadDone)
        told = result.content.arrays[0].joined().reshape(-1, 250)[:, 0]
        assert told.tolist() == list(range(result.file.start, result.file.end))
    assert run.tier.read_bytes_per_second == pytest.approx(ONE / 0.5)


def test_memory_that_was_read_into_is_used_again_while_there_is_more_to_read():
    run = ready(Disk(), "a")
    run.save("a", range(40), 10)
    run.work()
    blocks = run.tier.index("a").find(token_ids(range(40)), CacheKind.SLICEABLE, 40).blocks
    left = list(blocks)

    def read_next(result: ReadDone | ReadFailed) -> None:
        if left:
            run.tier.read(left.pop(0), read_next)
        run.tier.give_back(result.buffer)

    run.tier.read(left.pop(0), read_next)
    run.tier.read(left.pop(0), read_next)
    run.work()
    reads = [job for job in run.disk.done if isinstance(job, Read)]
    assert [len(job.buffer) > 0 for job in reads] == [False, False, False, True]
    run.tier.give_back(bytearray(10))
    heard_of(run, range(10))
    assert not run.disk.done[-1].buffer, "memory was kept without a read to use it"


def test_a_file_that_cannot_be_read_goes_with_all_that_stands_on_it():
    disk = Disk()
    run = ready(disk, "a")
    run.save("a", range(40), 10)
    run.work()
    disk.failure = lambda file: "its checksum is wrong" if file.start == 10 else ""
    heard = heard_of(run, range(20))
    assert [type(result) for result in heard] == [ReadDone, ReadFailed]
    assert found_tokens(run, range(40)) == 10
    run.check_index("a")
    status = run.tier.status()
    assert (status.bad_files, status.last_failure) == (1, "its checksum is wrong")


def test_a_file_that_gave_way_while_it_was_waited_for_is_no_bad_one():
    run = ready(Disk(), "a")
    run.save("a", range(10))
    run.work()
    [file] = run.tier.index("a").find(token_ids(range(10)), CacheKind.SLICEABLE, 10).blocks
    heard: list[ReadDone | ReadFailed] = []
    run.tier.forget()
    run.work()
    run.tier.read(file, heard.append)
    run.work()
    assert [type(result) for result in heard] == [ReadFailed]
    assert run.tier.status().bad_files == 0


def test_what_is_being_read_is_the_last_to_go():
    run = ready(Disk(), "a", max_bytes=2 * ONE + 5000)
    run.save("a", range(10))
    run.save("a", range(100, 110))
    run.work()
    [file] = run.tier.index("a").find(token_ids(range(10)), CacheKind.SLICEABLE, 10).blocks
    run.tier.read(file, lambda result: None)
    run.save("a", range(200, 210))
    run.work()
    assert found_tokens(run, range(10)) == 10
    assert not found_tokens(run, range(100, 110))


# Order of use, and what is told


def test_the_order_of_use_outlives_the_run_once_it_is_noted():
    disk = Disk()
    run = ready(disk, "a")
    for start in (0, 100, 200):
        run.save("a", range(start, start + 20), 10)
        run.work()
    run.use("a", range(20))
    run.tier.note_uses()
    run.work()
    assert sum(isinstance(job, Touch) for job in disk.done) == 1
    run.tier.note_uses()
    run.work()
    assert sum(isinstance(job, Touch) for job in disk.done) == 1
    again = ready(disk, "a", max_bytes=2 * ONE)
    assert found_tokens(again, range(20)) == 20
    unloaded = ready(disk, max_bytes=ONE)
    unloaded.check_limits()
    assert [each.file.start for each in disk.files.values()] == [0]


def test_what_stands_on_a_file_goes_before_it_in_the_next_run_too():
    disk = Disk()
    run = ready(disk, "a")
    run.save("a", range(30), 10)
    run.tier.note_uses()
    run.work()
    run.tier.note_uses()
    run.work()
    unloaded = ready(disk, max_bytes=2 * ONE)
    unloaded.check_limits()
    assert [each.file.start for each in disk.files.values()] == [0, 10]


def test_forgetting_deletes_all_of_all_models():
    disk = Disk()
    disk.place("old", "0", ONE, used_at=1.0)
    run = ready(disk, "a")
    run.save("a", range(20), 10)
    run.work()
    run.save("a", range(100, 110))
    run.tier.forget()
    assert found_tokens(run, range(20)) == 0
    run.work()
    assert not disk.files
    run.check_index("a")
    assert run.save("a", range(20)) == [True]
    run.work()
    run.check_index("a")


def test_forgetting_at_the_start_deletes_what_is_only_found_then():
    disk = Disk()
    first = ready(disk, "a")
    first.save("a", range(20), 10)
    first.work()
    disk.place("old", "0", ONE, used_at=1.0)
    run = Run(disk)
    run.tier.index("a")
    run.tier.forget()
    run.work()
    assert not disk.files
    run.check_index("a")
    run = ready(disk)
    first = ready(disk, "a")
    first.save("a", range(20), 10)
    first.work()
    run = ready(disk)
    run.tier.index("a")
    run.tier.forget()
    assert run.tier.status().bytes == 0
    run.work()
    assert not disk.files
    run.check_index("a")


def test_what_was_found_wrong_while_a_models_files_are_read_in_is_not_counted_on():
    disk = Disk()
    first = ready(disk, "a")
    first.save("a", range(30), 10)
    first.work()
    lost = first.tier.index("a").find(token_ids(range(30)), CacheKind.SLICEABLE, 30).blocks[1]
    run = ready(disk)
    scanned = disk.do(Scan("a"))
    run.tier.index("a")
    run.tier.hear(Checked((("a", lost.name),)))
    assert scanned is not None
    run.tier.hear(scanned)
    assert found_tokens(run, range(30)) == 10


def test_what_is_found_wrong_goes_with_all_that_stands_on_it():
    disk = Disk()
    run = ready(disk, "a")
    run.save("a", range(30), 10)
    run.work()
    lost = run.tier.index("a").find(token_ids(range(30)), CacheKind.SLICEABLE, 30).blocks[1]
    del disk.files["a", lost.name]
    run.tier.hear(Checked((("a", lost.name),)))
    run.work()
    run.check_index("a")
    assert found_tokens(run, range(30)) == 10
    assert run.tier.status().bad_files == 1


def test_what_is_found_torn_at_the_start_counts_as_bad():
    assert ready(Disk(torn=2), "a").tier.status().bad_files == 2


def test_of_a_model_that_is_not_loaded_only_what_was_wrong_counts_as_bad():
    disk = Disk()
    for place, name in enumerate(("below", "above", "good")):
        disk.place("old", name, ONE, used_at=float(place))
    run = ready(disk)
    run.tier.hear(Checked((("old", "below"),), (("old", "above"),)))
    run.work()
    assert [name for _, name in disk.files] == ["good"]
    status = run.tier.status()
    assert (status.bad_files, status.files) == (1, 1)


def test_a_model_that_is_loaded_while_its_files_are_being_deleted_does_not_count_on_them():
    disk = Disk()
    first = ready(disk, "a")
    first.save("a", range(30), 10)
    first.work()
    run = ready(disk)
    scanned = disk.do(Scan("a"))
    run.tier.forget()
    run.tier.index("a")
    assert scanned is not None
    run.tier.hear(scanned)
    assert found_tokens(run, range(30)) == 0


def test_contents_tell_models_apart_the_last_used_first():
    disk = Disk()
    run = ready(disk, "a")
    run.save("a", range(20), 10)
    run.work()
    disk.place("old", "0", ONE, used_at=disk.now - 1000)
    run = ready(disk, "a", "b")
    contents = run.tier.contents({"a": "org/model"})
    assert contents.disk == run.tier.status()
    known, unknown = contents.models
    assert (known.identity, known.name, known.files, known.blocks) == ("a", "org/model", 2, 2)
    assert (known.tokens, known.bytes, known.is_usable) == (20, 2 * ONE, True)
    assert 0 < known.idle_seconds < unknown.idle_seconds
    assert (unknown.identity, unknown.bytes, unknown.is_usable) == ("old", ONE, False)
    assert unknown.idle_seconds >= 1000
    run.save("b", range(10))
    run.seconds += 2
    [last_used, *_] = run.tier.contents().models
    assert (last_used.identity, last_used.idle_seconds) == ("b", 2)


def test_status_tells_what_was_restored():
    run = ready(Disk(), "a")
    run.tier.note_restored(1000, 5000)
    run.tier.note_restored(500, 2500)
    status = run.tier.status()
    assert (status.hits, status.restored_tokens, status.restored_bytes) == (2, 1500, 7500)


def test_what_waits_for_the_writer_takes_a_part_of_a_small_machines_memory():
    limits = DiskLimits(max_bytes=5)
    assert limits.within(8 << 30) == replace(limits, pending_bytes=512 << 20)
    assert limits.within(64 << 30) == limits.within(None) == limits
