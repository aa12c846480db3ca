"""State that leaves the device for the host's memory comes back in every bit, or is refused."""

import json
from functools import lru_cache
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache

from mlx_backend.device_arrays import DTYPES, on_device, on_host
from mlx_backend.errors import RestoreFailed
from mlx_backend.host_arrays import HostArray, end_to_end
from mlx_backend.importing import import_checkpoint, import_span
from mlx_backend.interface import Snapshot
from mlx_backend.layers import arrays_of, classify, leaf_caches, set_slots
from mlx_backend.rows import fresh_row, restore_row
from mlx_backend.tiny_models import build
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
)

TOKENS = some_tokens(200)
# Within a window; in one chunk beyond it; with single tokens at the end, which rotate a ring.
SCHEDULES = ([20], [100], [40, 39, 1, 1, 1, 1])
CHECKPOINTED_KINDS = (
    "tiny-sliding",
    "tiny-hybrid",
    "gpt-oss",
    "mamba2",
    "llama4",
    "falcon-h1",
    "baichuan-m1",
    "keeping-ring",
)
HALF_KINDS = (("tiny-full", None), ("tiny-full", 4), ("tiny-sliding", None), ("tiny-hybrid", None))


def read_in_chunks(kind, lengths, bits=None):
    ends = np.cumsum(lengths)
    return row_of(kind, np.split(TOKENS[: ends[-1]], ends[:-1]), bits=bits)


def own_memory(arrays):
    return tuple(HostArray(array.dtype, (array.joined().copy(),)) for array in arrays)


def bits_of(snapshot):
    """Every bit of a snapshot: by array its type, shape and bytes."""
    arrays = [a for span in snapshot.spans for a in span.host_arrays(0, span.length)]
    described = None
    if snapshot.checkpoint is not None:
        arrays += snapshot.checkpoint.host_arrays()
        described = json.loads(snapshot.checkpoint.described())
    return described, [(a.dtype, a.shape, a.joined().tobytes()) for a in arrays]


def through_host(layout, snapshot):
    (span,) = snapshot.spans
    arrays = own_memory(span.host_arrays(0, span.length))
    checkpoint = snapshot.checkpoint and import_checkpoint(
        layout,
        snapshot.length,
        snapshot.checkpoint.described(),
        own_memory(snapshot.checkpoint.host_arrays()),
    )
    return Snapshot(snapshot.length, (import_span(layout, arrays, 0, span.length),), checkpoint)


def scramble(row):
    """Give every array of a row random bits, NaNs with payloads among them."""
    random = np.random.default_rng(7)

    def scrambled(array):
        bits = random.integers(0, 256, (*array.shape[:-1], array.shape[-1] * array.dtype.size))
        return mx.array(bits.astype(np.uint8)).view(array.dtype)

    for cache in leaf_caches(row.caches):
        if type(cache) is ArraysCache:
            cache.cache = [None if a is None else scrambled(a) for a in cache.cache]
        elif arrays_of(cache):
            set_slots(cache, [scrambled(array) for array in arrays_of(cache)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_every_pattern_of_bits_comes_back(dtype):
    size = DTYPES[dtype].size
    bits = np.random.default_rng(1).integers(0, 256, (2, 3, 5, 7 * size)).astype(np.uint8)
    if dtype == "BOOL":
        bits &= 1
    came_in = HostArray(dtype, (bits.view(f"u{size}"),))
    (array,) = on_device([came_in])
    assert (array.dtype, array.shape) == (DTYPES[dtype], (2, 3, 5, 7))
    assert on_host(array).tobytes() == bits.tobytes()
    (part,) = on_device([came_in.tokens(1, 4)])
    assert mx.array_equal(part.view(mx.uint8), array[:, :, 1:4].view(mx.uint8))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(("kind", "bits"), KINDS_AND_BITS)
def test_a_row_restored_from_the_hosts_memory_goes_on_exactly_like_the_original(
    kind, bits, schedule
):
    layout = tiny_layout(kind, bits)
    cold = read_in_chunks(kind, schedule, bits)
    snapshot = snapshot_of(cold)
    imported = through_host(layout, snapshot)
    assert bits_of(imported) == bits_of(snapshot)
    restored = restore_row(layout, imported, room=300)
    assert restored.length == sum(schedule)
    for run, tokens in ((decoded, TOKENS[:3]), (log_probabilities, TOKENS[:40])):
        assert np.array_equal(run(kind, restored, tokens), run(kind, cold, tokens))
    restored.check_state()


@pytest.mark.parametrize("length", [1023, 1024, 1025])
@pytest.mark.parametrize(
    ("kind", "bits"), [("tiny-full", None), ("tiny-full", 8), ("llama4", None)]
)
def test_files_of_one_block_each_make_the_same_row(kind, bits, length):
    layout = tiny_layout(kind, bits)
    cold = row_of(kind, [some_tokens(length)], bits=bits)
    whole = snapshot_of(cold)
    (span,) = whole.spans
    ends = [*range(0, length, 1024), length]
    files = [own_memory(span.host_arrays(start, stop)) for start, stop in pairwise(ends)]
    spans = [import_span(layout, arrays, 0, arrays[0].shape[2]) for arrays in files]
    restored = restore_row(layout, Snapshot(length, tuple(spans), whole.checkpoint), length + 40)
    assert bits_of(snapshot_of(restored)) == bits_of(whole)
    assert np.array_equal(decoded(kind, restored, TOKENS[:2]), decoded(kind, cold, TOKENS[:2]))


@pytest.mark.parametrize(("kind", "bits"), KINDS_AND_BITS)
def test_every_class_keeps_every_bit_whatever_they_mean(kind, bits):
    row = read_in_chunks(kind, [90, 1, 1], bits)
    scramble(row)
    snapshot = snapshot_of(row)
    imported = through_host(row.layout, snapshot)
    assert bits_of(imported) == bits_of(snapshot)
    restored = restore_row(row.layout, imported, room=100)
    assert bits_of(snapshot_of(restored)) == bits_of(snapshot)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize(("kind", "bits"), HALF_KINDS)
def test_models_of_half_precision_keep_every_bit(kind, bits, dtype):
    model = build(kind)
    model.set_dtype(dtype)
    row = fresh_row(classify(model, kv_bits=bits), room=100)
    row.read(model, TOKENS[:90])
    assert dtype in {array.dtype for cache in leaf_caches(row.caches) for array in arrays_of(cache)}
    for _ in range(2):
        snapshot = snapshot_of(row)
        imported = through_host(row.layout, snapshot)
        assert bits_of(imported) == bits_of(snapshot)
        assert bits_of(snapshot_of(restore_row(row.layout, imported, 100))) == bits_of(snapshot)
        scramble(row)


def test_what_leaves_is_the_devices_own_memory():
    row = row_of("tiny-hybrid", [some_tokens(1100)])
    snapshot = snapshot_of(row)
    before = live_bytes()
    left = [snapshot.spans[0].host_arrays(900, 1100), snapshot.checkpoint.host_arrays()]
    assert live_bytes() == before
    again = [snapshot.spans[0].host_arrays(900, 1100), snapshot.checkpoint.host_arrays()]
    for array, other in zip(sum(left, ()), sum(again, ()), strict=True):
        for part, same in zip(array.parts, other.parts, strict=True):
            assert np.shares_memory(part, same)
            assert not part.flags.writeable
    assert [part.shape[2] for part in left[0][0].parts] == [124, 76]


def test_what_left_outlives_what_it_was_taken_from():
    row = row_of("tiny-full", [TOKENS])
    span = row.capture_span(0, 200)
    (array,) = span.host_arrays(10, 190)
    expected = array.joined().copy()
    del span, row
    live_bytes()
    others = [mx.full((100, 100), 3.0) for _ in range(20)]
    mx.eval(others)
    assert np.array_equal(array.joined(), expected)


@pytest.mark.parametrize("kind", ["tiny-full", "tiny-sliding"])
def test_what_comes_in_is_a_copy_of_its_own_bytes_and_no_more(kind):
    layout = tiny_layout(kind)
    snapshot = snapshot_of(row_of(kind, [some_tokens(1500)]))
    arrays = own_memory(snapshot.spans[0].host_arrays(0, 1500))
    before = live_bytes()
    span = import_span(layout, arrays, 200, 1400)
    assert span.block_lengths() == (1024, 176)
    assert live_bytes() - before == span.nbytes == 1200 * layout.span_token_bytes
    expected = bits_of(Snapshot(1200, (span,)))
    for array in arrays:  # the buffer is used for the next file
        array.parts[0][:] = 0
    assert bits_of(Snapshot(1200, (span,))) == expected


def test_a_part_of_what_came_in_is_the_part_that_was_asked_for():
    span = row_of("tiny-full", [TOKENS]).capture_span(0, 200)
    arrays = end_to_end(
        [own_memory(span.host_arrays(0, 70)), own_memory(span.host_arrays(70, 200))]
    )
    part = import_span(tiny_layout("tiny-full"), arrays, 60, 95)
    expected, _ = span.split(60)[1].split(35)
    assert bits_of(Snapshot(35, (part,))) == bits_of(Snapshot(35, (expected,)))


def test_arrays_without_width_come_back_like_any_other():
    empty = HostArray("BF16", (np.zeros((3, 1, 9, 0), dtype=np.uint16),))
    (array,) = on_device([empty.tokens(2, 6)])
    assert (array.dtype, array.shape) == (mx.bfloat16, (3, 1, 4, 0))
    assert on_host(array).shape == (3, 1, 4, 0)


def refused_span(kind, arrays, start=0, stop=200, bits=None):
    layout = tiny_layout(kind, bits)
    before = live_bytes()
    with pytest.raises(RestoreFailed) as caught:
        import_span(layout, arrays, start, stop)
    reason = str(caught.value)
    del caught
    assert live_bytes() <= before
    return reason


def test_a_span_of_another_model_or_another_kv_format_is_refused():
    plain = own_memory(row_of("tiny-full", [TOKENS]).capture_span(0, 200).host_arrays(0, 200))
    eight, four = (
        own_memory(
            row_of("tiny-full", [TOKENS], bits=bits).capture_span(0, 200).host_arrays(0, 200)
        )
        for bits in (8, 4)
    )
    assert "other layers" in refused_span("tiny-full", eight)
    assert "other layers" in refused_span("tiny-full", plain, bits=8)
    assert "needs" in refused_span("tiny-full", four, bits=8)
    assert "other layers" in refused_span("deepseek-v32", plain)
    assert "unknown" in refused_span("unknown", plain)


def test_a_span_in_another_type_or_shape_is_refused():
    (array,) = row_of("tiny-full", [TOKENS]).capture_span(0, 200).host_arrays(0, 200)
    whole = array.joined()
    assert "type" in refused_span("tiny-full", [HostArray("BF16", (whole,))])
    assert "type" in refused_span("tiny-full", [HostArray("F8_E4M3", (whole,))])
    halves = HostArray("BF16", (whole.view(np.uint16),))
    assert "needs" in refused_span("tiny-full", [halves])
    assert "needs" in refused_span("tiny-full", [HostArray("U32", (whole,))])
    assert "needs" in refused_span("tiny-full", [HostArray("F32", (whole[:-1],))])
    assert refused_span("tiny-full", [HostArray("F32", (whole.ravel(),))])
    for start, stop in ((0, 201), (-1, 10), (7, 7), (9, 3)):
        assert "no tokens" in refused_span("tiny-full", [array], start, stop)


@pytest.mark.parametrize("kind", CHECKPOINTED_KINDS)
def test_a_checkpoint_of_any_other_model_is_refused(kind):
    checkpoint = row_of(kind, [TOKENS]).capture_checkpoint()
    described, arrays = checkpoint.described(), checkpoint.host_arrays()
    whole = [leaf for leaf in tiny_layout(kind).leaves if leaf.is_whole]
    for other in KEPT_KINDS:
        layout = tiny_layout(other)
        if [leaf for leaf in layout.leaves if leaf.is_whole] != whole:
            with pytest.raises(RestoreFailed):
                import_checkpoint(layout, 200, described, arrays)


def test_a_checkpoint_whose_arrays_have_another_type_or_size_is_refused():
    layout = tiny_layout("tiny-hybrid")
    checkpoint = row_of("tiny-hybrid", [TOKENS]).capture_checkpoint()
    described, arrays = checkpoint.described(), checkpoint.host_arrays()
    first, *rest = arrays
    for strange in (
        HostArray("U32", first.parts),
        HostArray("F32", (first.joined()[..., :-1],)),
        HostArray("F32", (first.joined()[:-1],)),
        HostArray("F32", (first.joined()[..., None],)),
        HostArray("F32", (first.joined().ravel()[:0],)),
    ):
        with pytest.raises(RestoreFailed):
            import_checkpoint(layout, 200, described, (strange, *rest))
    with pytest.raises(RestoreFailed):
        import_checkpoint(layout, 200, described, (*arrays, first))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        '{"length":200,"leaves":[["system",[],[1]]],"places":[[0,0]]}',
        '{"length":200,"leaves":[[["ArraysCache"],[],[1]]],"places":[[0,0]]}',
        '{"length":200,"leaves":[],"places":[]}',
        '{"length":true,"leaves":[],"places":[]}',
    ],
)
def test_a_description_that_is_none_is_refused(text):
    checkpoint = row_of("tiny-sliding", [TOKENS]).capture_checkpoint()
    with pytest.raises(RestoreFailed):
        import_checkpoint(tiny_layout("tiny-sliding"), 200, text, checkpoint.host_arrays())


@lru_cache
def checkpoint_of(kind):
    return row_of(kind, [TOKENS[:90]]).capture_checkpoint()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["tiny-sliding", "tiny-hybrid", "llama4"]), st.data())
def test_a_changed_description_gives_the_same_arrays_or_none(kind, data):
    checkpoint = checkpoint_of(kind)
    text, arrays = checkpoint.described(), checkpoint.host_arrays()
    at = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(at, min(len(text), at + 3)))
    put = data.draw(st.text(alphabet='0123456789-.,[]{}":eE null', max_size=3))
    try:
        made = import_checkpoint(tiny_layout(kind), 90, text[:at] + put + text[end:], arrays)
    except RestoreFailed:
        return
    for ours, theirs in zip(made.states(), checkpoint.states(), strict=True):
        assert ours.cache_class is theirs.cache_class
        for array, expected in zip(ours.arrays, theirs.arrays, strict=True):
            assert (array is None and expected is None) or mx.array_equal(array, expected)
