"""The index by example: what of a prompt is on disk, and what is the first to go."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import pytest

from daemon.disk_cache.files import FileKind, StoredFile, key_of
from daemon.disk_cache.index import Coverage, DiskIndex, Found
from mlx_backend.messages import CacheKind, TokenIds, token_ids
from tests.disk_cache.files_on_disk import IDENTITY, checkpoint, lacking, put

SLICEABLE, CHECKPOINTED = CacheKind.SLICEABLE, CacheKind.CHECKPOINTED
WHOLE = 10**9


def find(index: DiskIndex, ids: Sequence[int], kind: CacheKind, most: int = WHOLE) -> Found:
    index.check()
    return index.find(token_ids(ids), kind, most)


def restored(found: Found) -> list[int]:
    """The tokens that the blocks of a find hold, as its contract says to take them."""
    ends = [*(block.start for block in found.blocks[1:]), found.length]
    pieces = (
        block.tokens[: end - block.start] for block, end in zip(found.blocks, ends, strict=False)
    )
    return [int(token) for piece in pieces for token in piece]


def taken_out(index: DiskIndex) -> Iterator[StoredFile]:
    """Everything, by what is the first to go."""
    while (oldest := index.oldest()) is not None:
        index.check()
        assert index.remove(oldest[1].name) == (oldest[1],), "something stood on it"
        yield oldest[1]


def test_of_an_empty_index_nothing_is_found():
    index = DiskIndex(IDENTITY)
    assert find(index, range(10), SLICEABLE) == Found()
    assert index.coverage(token_ids([])) == Coverage()
    assert index.oldest() is None


def test_what_was_put_in_is_found_as_far_as_the_prompt_goes_with_it():
    index = DiskIndex(IDENTITY)
    put(index, range(10), 4)
    for ids in (range(10), range(7), [*range(6), 99], range(20)):
        common = len([one for one, other in zip(ids, range(10), strict=False) if one == other])
        found = find(index, ids, SLICEABLE)
        assert found.length == common
        assert restored(found) == list(range(common))
    assert find(index, [5, 6, 7], SLICEABLE) == Found()


def test_no_more_is_found_than_was_asked_for():
    index = DiskIndex(IDENTITY)
    put(index, range(10), 4)
    found = find(index, range(10), SLICEABLE, most=8)
    assert found.length == 8
    assert [block.start for block in found.blocks] == [0, 4]
    assert find(index, range(10), SLICEABLE, most=0) == Found()


def test_a_fork_stands_on_the_block_that_it_leaves_where_it_leaves_it():
    index = DiskIndex(IDENTITY)
    [trunk] = put(index, range(10), 10)
    fork = [*range(6), 60, 61, 62]
    [branch] = put(index, fork, 10)
    assert (branch.parent, branch.start, branch.end) == (trunk.key, 6, 9)
    assert restored(find(index, fork, SLICEABLE)) == fork
    assert restored(find(index, range(10), SLICEABLE)) == list(range(10))
    assert index.token_count == 10 + 3


def test_a_fork_of_a_fork_at_the_same_token_stands_on_the_first_block():
    index = DiskIndex(IDENTITY)
    [trunk] = put(index, range(10), 10)
    put(index, [*range(6), 60], 10)
    [other] = put(index, [*range(6), 70, 71], 10)
    assert other.parent == trunk.key


def test_a_checkpointed_model_is_restored_from_checkpoints_only():
    index = DiskIndex(IDENTITY)
    put(index, range(10), 4)
    assert find(index, range(10), CHECKPOINTED) == Found()
    put(index, range(6), 4, is_checkpointed=True)
    found = find(index, range(10), CHECKPOINTED)
    assert found.length == 6
    assert found.checkpoint is not None
    assert found.checkpoint.end == 6
    assert restored(found) == list(range(6))
    assert find(index, range(10), CHECKPOINTED, most=5) == Found()


def test_the_deepest_checkpoint_on_the_way_is_taken_and_none_beside_it():
    index = DiskIndex(IDENTITY)
    put(index, range(3), 10, is_checkpointed=True)
    put(index, range(10), 10, is_checkpointed=True)
    put(index, [*range(6), 60, 61], 10, is_checkpointed=True)
    assert find(index, range(20), CHECKPOINTED).length == 10
    assert find(index, [*range(6), 60, 61], CHECKPOINTED).length == 8
    assert find(index, [*range(6), 60, 99], CHECKPOINTED).length == 3
    assert index.coverage(token_ids(range(10))).checkpoints == {3, 10}


def test_a_checkpoint_of_the_block_behind_the_fork_is_not_on_the_forks_way():
    index = DiskIndex(IDENTITY)
    put(index, range(10), 10)
    put(index, range(5), 10, is_checkpointed=True)
    put(index, range(8), 10, is_checkpointed=True)
    fork = [*range(6), *range(60, 70)]
    put(index, fork, 20)
    assert find(index, fork, CHECKPOINTED).length == 5
    assert index.coverage(token_ids(fork)).checkpoints == {5}


def test_of_a_model_without_reuse_nothing_is_found():
    index = DiskIndex(IDENTITY)
    put(index, range(10), 4)
    assert find(index, range(10), CacheKind.UNCACHEABLE) == Found()


def test_what_is_not_written_yet_is_found_and_told():
    index = DiskIndex(IDENTITY)
    first, second, third = lacking(index, range(10), 4)
    for file in (first, second, third):
        index.add(file, is_written=False)
    index.written(first, 1000)
    assert find(index, range(10), SLICEABLE).pending == (second, third)
    assert find(index, range(8), SLICEABLE).pending == (second,)
    state = checkpoint(index, range(4))
    index.add(state, is_written=False)
    assert find(index, range(4), CHECKPOINTED).pending == (state,)
    assert (index.nbytes, index.file_count) == (1000, 4)


def test_a_file_has_the_size_that_it_was_written_with():
    index = DiskIndex(IDENTITY)
    [file] = lacking(index, range(4))
    index.add(file, is_written=False)
    assert index.nbytes == 0
    index.written(file, 1000)
    index.written(file, 5000)
    found = index.get(file.name)
    assert found is not None
    assert (found.nbytes, index.nbytes) == (1000, 1000)


def test_the_word_about_a_file_that_was_taken_out_is_not_for_the_one_that_came_after_it():
    index = DiskIndex(IDENTITY)
    [first] = lacking(index, range(4))
    [again] = lacking(index, range(4))
    index.add(first, is_written=False)
    index.remove(first.name)
    index.add(again, is_written=False)
    index.written(first, 1000)
    assert not index.is_written(again.name)
    index.written(again, 1000)
    assert index.is_written(again.name)


def block(start: int, ids: Sequence[int], parent: str) -> StoredFile:
    tokens = token_ids(ids)
    key = key_of(IDENTITY, [token_ids([start]), tokens, token_ids([len(parent)])])
    return StoredFile(IDENTITY, FileKind.BLOCK, key, parent, start, start + len(tokens), tokens)


@pytest.mark.parametrize(
    "what",
    [
        "without a parent",
        "beyond the parent's end",
        "before the parent's start",
        "as the parent goes on",
        "as another goes on",
        "as another begins",
        "with too few tokens",
        "of no token",
        "a checkpoint beyond the block",
        "a checkpoint before the block",
        "a checkpoint twice",
        "a checkpoint on nothing",
    ],
)
def test_what_does_not_fit_stays_out(what: str):
    index = DiskIndex(IDENTITY)
    first, second = put(index, range(10), 5)
    put(index, [*range(7), 70], 5)
    put(index, range(8), 5, is_checkpointed=True)
    own = token_ids([90])

    def state(end: int, parent: str) -> StoredFile:
        key = key_of(IDENTITY, [token_ids(range(end)), own])
        return StoredFile(IDENTITY, FileKind.CHECKPOINT, key, parent, end, end)

    wrong = {
        "without a parent": block(10, [90], "nobody"),
        "beyond the parent's end": block(11, [90], second.key),
        "before the parent's start": block(4, [90], second.key),
        "as the parent goes on": block(8, [8, 90], second.key),
        "as another goes on": block(7, [70, 90], second.key),
        "as another begins": block(0, [0], ""),
        "with too few tokens": StoredFile(
            IDENTITY, FileKind.BLOCK, "a" * 40, second.key, 10, 12, own
        ),
        "of no token": StoredFile(IDENTITY, FileKind.BLOCK, "a" * 40, second.key, 10, 10),
        "a checkpoint beyond the block": state(6, first.key),
        "a checkpoint before the block": state(5, second.key),
        "a checkpoint twice": state(8, second.key),
        "a checkpoint on nothing": state(0, ""),
    }[what]
    before = (index.nbytes, index.file_count, index.token_count)
    assert not index.add(wrong, is_written=True)
    assert (index.nbytes, index.file_count, index.token_count) == before
    index.check()


def test_the_same_file_is_not_added_twice():
    index = DiskIndex(IDENTITY)
    [file] = put(index, range(4))
    assert not index.add(file, is_written=True)


def test_a_file_goes_with_all_that_stands_on_it_the_deepest_first():
    index = DiskIndex(IDENTITY)
    first, second, third = put(index, range(15), 5)
    [fork] = put(index, [*range(7), 70], 5)
    [state] = put(index, range(8), 5, is_checkpointed=True)
    taken = index.remove(second.name)
    assert set(taken) == {second, third, fork, state}
    assert taken[-1] == second
    assert find(index, range(15), SLICEABLE).blocks == (first,)
    assert index.remove(second.name) == ()


def test_a_long_chain_goes_at_once():
    index = DiskIndex(IDENTITY)
    files = lacking(index, range(3000), 1)
    for file in files:
        index.add(file, is_written=True, used_at=1.0)
    assert index.remove(files[0].name) == tuple(reversed(files))
    assert (index.nbytes, index.file_count, index.token_count) == (0, 0, 0)


def test_the_least_recently_used_goes_first_and_of_a_chain_its_end():
    index = DiskIndex(IDENTITY)
    head = list(range(4))
    put(index, [*head, *range(10, 18)], 4)
    put(index, [*head, *range(20, 28)], 4)
    put(index, [*head, *range(30, 38)], 4)
    index.touch(find(index, [*head, *range(10, 18)], SLICEABLE).blocks)
    ways = [(file.start, int(file.tokens[0])) for file in taken_out(index)]
    assert ways == [(8, 24), (4, 20), (8, 34), (4, 30), (8, 14), (4, 10), (0, 0)]


def test_a_checkpoint_goes_before_the_block_that_it_stands_on():
    index = DiskIndex(IDENTITY)
    put(index, range(8), 8)
    put(index, range(5), 8, is_checkpointed=True)
    kinds = [file.kind for file in taken_out(index)]
    assert kinds == [FileKind.CHECKPOINT, FileKind.BLOCK]


def test_what_is_not_written_yet_does_not_go_nor_what_it_stands_on():
    index = DiskIndex(IDENTITY)
    first, second = lacking(index, range(8), 4)
    index.add(first, is_written=True)
    index.add(second, is_written=False)
    assert index.oldest() is None
    [other] = put(index, range(50, 54))
    assert list(taken_out(index)) == [other]
    index.written(second, 100)
    assert [file.start for file in taken_out(index)] == [4, 0]


def test_files_of_earlier_runs_go_before_all_that_was_used_in_this_one():
    old, index = DiskIndex(IDENTITY), DiskIndex(IDENTITY)
    sequences = [list(range(start, start + 8)) for start in (100, 200, 300)]
    files = [file for sequence in sequences for file in put(old, sequence, 4)]
    times = [5e9, 2e9, 4e9, 1e9, 3e9, 6e9]
    for file, used_at in zip(files, times, strict=True):
        assert index.add(file, is_written=True, used_at=used_at)
    put(index, range(4))
    firsts = [int(file.tokens[0]) for file in taken_out(index)]
    # A chain was used when its end was: 200 at 3e9 though its end at 1e9, 300 with its end at 6e9.
    assert firsts == [204, 104, 200, 100, 304, 300, 0]


def test_indexes_that_number_their_uses_together_can_be_compared():
    uses = count(1)
    one, other = DiskIndex("one", uses), DiskIndex("other", uses)
    [first] = put(one, range(4))
    put(other, range(4))
    assert one.oldest() < other.oldest()
    one.touch([first])
    assert other.oldest() < one.oldest()


def test_what_was_used_is_told_once_the_latest_first():
    index = DiskIndex(IDENTITY)
    first, second = put(index, range(8), 4)
    [other] = put(index, range(50, 54))
    assert index.take_touched() == (other, first, second)
    assert index.take_touched() == ()
    index.touch([second])
    assert index.take_touched() == (first, second)
    index.touch([second])
    index.remove(second.name)
    assert index.take_touched() == (first,)


def test_what_was_used_before_it_was_written_is_told_after_it_was():
    index = DiskIndex(IDENTITY)
    [file] = lacking(index, range(4))
    index.add(file, is_written=False)
    assert index.take_touched() == ()
    index.written(file, 100)
    assert [touched.name for touched in index.take_touched()] == [file.name]


def test_to_touch_what_is_not_there_does_nothing():
    index = DiskIndex(IDENTITY)
    [file] = put(index, range(4))
    index.remove(file.name)
    index.touch([file])
    assert index.take_touched() == ()


def random_ids(length: int, seed: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 50_000, length, dtype=np.int32)


def calls(function, *arguments) -> int:
    """How many functions, written in Python or not, a call took."""
    called = 0

    def tally(frame: object, event: str, argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    sys.setprofile(tally)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return called


def test_a_prompt_is_found_a_block_at_a_time_however_many_files_there_are():
    index = DiskIndex(IDENTITY)
    head, prompt = random_ids(1500, seed=0), random_ids(50_000, seed=1)
    put(index, np.concatenate((head, prompt)), is_checkpointed=True)
    blocks = index.block_count
    asked = (np.concatenate((head, prompt)), CHECKPOINTED, WHOLE)
    alone = calls(index.find, *asked)
    for seed in range(200):
        put(index, np.concatenate((head, random_ids(2000, seed + 2))))
    assert index.find(*asked).length == len(head) + len(prompt)
    assert calls(index.find, *asked) == alone <= 20 * blocks
    assert calls(index.coverage, asked[0]) <= 20 * blocks


def test_the_first_to_go_is_known_without_a_search():
    index = DiskIndex(IDENTITY)
    for seed in range(50):
        put(index, random_ids(1000, seed), 100)
    few = calls(index.oldest)
    for seed in range(50, 150):
        put(index, random_ids(1000, seed), 100)
    assert calls(index.oldest) == few < 20
