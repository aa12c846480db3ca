"""Spans and checkpoints: exact, detached, and no larger than what they cover."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList

from mlx_backend.errors import StateMismatch
from mlx_backend.interface import Snapshot
from mlx_backend.layers import arrays_of, leaf_caches
from mlx_backend.rows import check_state, fresh_row, offsets, restore_row
from mlx_backend.snapshots import (
    Block,
    MlxSpan,
    capture_checkpoint,
    capture_span,
)
from tests.mlx_backend.tiny_rows import (
    KEPT_KINDS,
    KINDS_AND_BITS,
    decoded,
    live_bytes,
    log_probabilities,
    row_of,
    snapshot_of,
    some_tokens,
    tiny_layout,
    tiny_model,
)

TOKENS = some_tokens(200)
# Chunks read before the capture: within a window, one longer than it, several, and single tokens
# at the end, which rotate a ring in place.
SCHEDULES = ([20], [100], [60, 40], [40, 39, 1, 1, 1, 1])
BATCHABLE_KINDS = ("tiny-full", "tiny-sliding", "tiny-hybrid", "gpt-oss", "mamba2", "falcon-h1")


def chunks(lengths):
    ends = np.cumsum([0, *lengths])
    return [TOKENS[start:stop] for start, stop in pairwise(ends)]


def span_of(values):
    """A span whose only array says which token is where."""
    array = mx.array(np.asarray(values, dtype=np.float32)).reshape(1, 1, -1, 1)
    mx.eval(array)
    return MlxSpan((Block(len(values), (array,)),))


def values_of(span):
    return [int(x) for block in span.blocks for x in block.arrays[0].reshape(-1).tolist()]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(("kind", "bits"), KINDS_AND_BITS)
def test_a_restored_row_goes_on_exactly_like_the_row_it_was_taken_from(kind, bits, schedule):
    cold = row_of(kind, chunks(schedule), bits=bits)
    restored = restore_row(tiny_layout(kind, bits), snapshot_of(cold), room=300)
    assert restored.length == cold.length == sum(schedule) > 0
    for run, tokens in (
        (decoded, TOKENS[:3]),
        (log_probabilities, TOKENS[:50]),
        (decoded, TOKENS[:3]),
    ):
        expected = run(kind, cold, tokens)
        assert np.array_equal(run(kind, restored, tokens), expected)
    restored.check_state()


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_a_snapshot_taken_inside_a_run_is_the_cold_run_up_to_there(kind):
    row = row_of(kind, chunks([50]))
    snapshot = snapshot_of(row)
    expected = log_probabilities(kind, row, TOKENS[50:90])
    restored = restore_row(tiny_layout(kind), snapshot, room=100)
    assert np.array_equal(log_probabilities(kind, restored, TOKENS[50:90]), expected)


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_rows_restored_from_one_snapshot_do_not_touch_it_or_each_other(kind):
    snapshot = snapshot_of(row_of(kind, chunks([45])))
    first, second = (restore_row(tiny_layout(kind), snapshot, room=100) for _ in range(2))
    expected = decoded(kind, first, TOKENS[60:70])
    decoded(kind, second, TOKENS[80:99])
    third = restore_row(tiny_layout(kind), snapshot, room=100)
    assert np.array_equal(decoded(kind, third, TOKENS[60:70]), expected)


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_what_is_captured_in_pieces_restores_like_what_is_captured_at_once(kind):
    row = fresh_row(tiny_layout(kind), room=100)
    spans = []
    for chunk in chunks([31, 33, 9]):
        row.read(tiny_model(kind), chunk)
        spans.append(row.capture_span(row.length - len(chunk), row.length))
    snapshot = Snapshot(73, tuple(spans), snapshot_of(row).checkpoint)
    restored = restore_row(tiny_layout(kind), snapshot, room=100)
    assert np.array_equal(decoded(kind, restored, TOKENS[:4]), decoded(kind, row, TOKENS[:4]))


@pytest.mark.parametrize("kind", ["tiny-full", "falcon-h1", "deepseek-v32", "concatenating"])
@pytest.mark.parametrize("length", [1, 37, 44, 45])
def test_a_sliceable_part_is_good_at_any_offset_inside_a_span(kind, length):
    row = row_of(kind, chunks([60]))
    before, after = row.capture_span(0, 60).split(44)
    part = row_of(kind, [TOKENS[:length]])
    checkpoint = snapshot_of(part).checkpoint
    restored = restore_row(tiny_layout(kind), Snapshot(length, (before, after), checkpoint), 64)
    assert restored.length == length
    restored.check_state()
    for ours, theirs in zip(leaf_caches(restored.caches), leaf_caches(row.caches), strict=True):
        for mine, whole in zip(arrays_of(ours), arrays_of(theirs), strict=True):
            if mine.ndim == 4 and whole.shape[2] >= 60:
                assert mx.array_equal(mine[:, :, :length], whole[:, :, :length])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_splitting_and_joining_keeps_every_token_in_its_place(data):
    pieces, total = [], 0
    for length in data.draw(st.lists(st.integers(1, 1500), min_size=1, max_size=4)):
        pieces.append(span_of(range(total, total + length)))
        total += length
    joined = pieces[0]
    for piece in pieces[1:]:
        joined = joined.join(piece)
    assert values_of(joined) == list(range(total))
    if total > 1:
        at = data.draw(st.integers(1, total - 1))
        left, right = joined.split(at)
        assert (left.length, right.length) == (at, total - at)
        assert values_of(left) + values_of(right) == list(range(total))
        assert values_of(left.join(right)) == list(range(total))


def test_small_neighbours_become_one_block_and_full_blocks_are_handed_on():
    row = row_of("tiny-full", [some_tokens(500)] * 5)
    span = row.capture_span(0, 2500)
    assert span.block_lengths() == (1024, 1024, 452)
    assert span.array_count == 3
    joined = span.join(row.capture_span(100, 200)).join(row.capture_span(200, 300))
    assert joined.block_lengths() == (1024, 1024, 652)
    assert joined.blocks[:2] == span.blocks[:2]
    assert span.join(row.capture_span(0, 1000)).block_lengths() == (1024, 1024, 452, 1000)
    left, right = joined.split(1024)
    assert left.blocks == joined.blocks[:1]
    assert right.blocks == joined.blocks[1:]


def test_a_split_copies_one_block_and_lets_go_of_the_original():
    row = row_of("tiny-full", [some_tokens(512)] * 8)
    span = row.capture_span(0, 4096)
    del row
    before, block_bytes, whole_bytes = live_bytes(), span.nbytes // 4, span.nbytes
    mx.reset_peak_memory()
    left, right = span.split(1500)
    assert mx.get_peak_memory() - before <= 1.01 * block_bytes
    del span
    assert live_bytes() <= before + 1024
    assert left.nbytes + right.nbytes == whole_bytes
    del right
    assert live_bytes() <= before - whole_bytes + left.nbytes + 1024


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_a_snapshot_keeps_its_own_bytes_and_nothing_of_the_row(kind):
    row_of(kind, [TOKENS])
    base = live_bytes()
    row = row_of(kind, [some_tokens(700)])
    live_bytes()
    if row.layout.groups:
        spans = (row.capture_span(0, 100), row.capture_span(300, 301), row.capture_span(301, 600))
    else:
        spans = ()
    checkpoint = row.capture_checkpoint() if row.layout.needs_checkpoint else None
    del row
    kept = [*spans, *([checkpoint] if checkpoint else [])]
    arrays = sum(item.array_count for item in kept)
    held = live_bytes() - base
    assert abs(held - sum(item.nbytes for item in kept)) <= 64 * arrays + 64
    assert sum(span.nbytes for span in spans) == tiny_layout(kind).span_token_bytes * sum(
        span.length for span in spans
    )
    del spans, checkpoint, kept
    assert live_bytes() <= base + 64


@pytest.mark.parametrize("kind", ["tiny-full", "tiny-sliding", "falcon-h1"])
def test_capturing_an_interval_copies_that_interval_only(kind):
    row = row_of(kind, [some_tokens(500)] * 4)
    before = live_bytes()
    mx.reset_peak_memory()
    span = row.capture_span(1900, 2000)
    assert mx.get_peak_memory() - before <= 1.01 * span.nbytes + 1024


def test_a_captured_row_is_appended_to_in_place():
    row = row_of("tiny-full", [some_tokens(500)] * 6)
    row.reserve(4000)
    kept = [row.capture_span(0, 3000)]
    before = live_bytes()
    mx.reset_peak_memory()
    decoded("tiny-full", row, TOKENS[:3])
    kept.append(row.capture_span(3000, 3003))
    decoded("tiny-full", row, TOKENS[:3])
    assert mx.get_peak_memory() - before < 0.1 * row.nbytes


@pytest.mark.parametrize("kind", ["tiny-sliding", "gpt-oss", "llama4", "keeping-ring"])
def test_a_checkpoint_of_windows_is_as_large_as_the_windows(kind):
    row = row_of(kind, [some_tokens(400)] * 2)
    checkpoint = row.capture_checkpoint()
    assert checkpoint.nbytes == tiny_layout(kind).checkpoint_bytes
    assert checkpoint.array_count == 1


def test_recurrent_layers_are_stacked_into_few_arrays():
    checkpoint = row_of("tiny-hybrid", [TOKENS]).capture_checkpoint()
    assert checkpoint.array_count == 2
    assert checkpoint.nbytes == tiny_layout("tiny-hybrid").checkpoint_bytes


def batch_of(kind, lengths, steps):
    """Rows of these lengths in one batch of mlx-lm's, decoded for `steps`; and their tokens."""
    rows = [row_of(kind, [some_tokens(length, seed)]) for seed, length in enumerate(lengths)]
    merged = [
        type(layer[0]).merge(list(layer)) for layer in zip(*(r.caches for r in rows), strict=True)
    ]
    tokens = [some_tokens(steps, 100 + seed) for seed in range(len(lengths))]
    for step in range(steps):
        inputs = mx.array([[int(ids[step])] for ids in tokens])
        mx.eval(tiny_model(kind)(inputs, cache=merged))
    return merged, tokens


def extracted(cache, row):
    """mlx-lm's own way out of a batch: the oracle. A CacheList's extract goes member by member."""
    if type(cache) is CacheList:
        return CacheList(*(extracted(inner, row) for inner in cache.caches))
    return cache.extract(row)


@pytest.mark.parametrize(
    ("lengths", "steps"), [((3, 9, 20), 5), ((3, 50, 90), 1), ((3, 50, 90), 10), ((3, 50, 90), 70)]
)
@pytest.mark.parametrize("kind", BATCHABLE_KINDS)
def test_a_row_captured_from_inside_a_batch_is_that_row(kind, lengths, steps):
    layout = tiny_layout(kind)
    merged, tokens = batch_of(kind, lengths, steps)
    for row, length in enumerate(lengths):
        now = length + steps
        check_state(layout, merged, now, row)
        span = capture_span(layout, merged, 0, now, row)
        checkpoint = capture_checkpoint(layout, merged, now, row)
        snapshot = Snapshot(now, (span,), checkpoint if layout.needs_checkpoint else None)
        ours = restore_row(layout, snapshot, room=now + 32)
        theirs = fresh_row(layout, room=0)
        theirs.caches, theirs.length = [extracted(cache, row) for cache in merged], now
        expected = log_probabilities(kind, theirs, TOKENS[:5])
        assert np.array_equal(log_probabilities(kind, ours, TOKENS[:5]), expected)
        alone = row_of(kind, [some_tokens(length, row), *tokens[row].reshape(-1, 1)])
        solo = log_probabilities(kind, alone, TOKENS[:5])
        assert np.abs(solo - expected).max() < 1e-3


@pytest.mark.parametrize("kind", BATCHABLE_KINDS)
def test_capturing_from_a_batch_copies_the_interval_of_that_row_only(kind):
    merged, _ = batch_of(kind, (900, 1500), steps=2)
    layout = tiny_layout(kind)
    before = live_bytes()
    mx.reset_peak_memory()
    span = capture_span(layout, merged, 880, 902, row=0)
    assert span.length == 22
    assert mx.get_peak_memory() - before <= span.nbytes + 4096


def test_offsets_of_a_batch_are_each_rows_own():
    merged, _ = batch_of("tiny-sliding", (3, 50), steps=40)
    layout = tiny_layout("tiny-sliding")
    assert set(offsets(merged, 0)) == {43}
    assert set(offsets(merged, 1)) == {90}
    with pytest.raises(StateMismatch):
        check_state(layout, merged, 90, row=0)


def test_a_recurrent_row_in_the_middle_of_a_padded_batch_is_not_captured():
    row = row_of("mamba2", [TOKENS])
    row.caches[0].prepare(lengths=[3])
    with pytest.raises(StateMismatch, match="padded"):
        row.capture_checkpoint()


def test_an_unknown_cache_class_is_never_captured():
    row = row_of("unknown", [TOKENS])
    with pytest.raises(StateMismatch, match="unknown class"):
        row.capture_span(0, 10)
    with pytest.raises(StateMismatch, match="unknown class"):
        row.capture_checkpoint()


def test_tokens_that_are_not_there_cannot_be_captured():
    row = row_of("tiny-full", [TOKENS])
    with pytest.raises(StateMismatch, match="201"):
        row.capture_span(0, 201)
