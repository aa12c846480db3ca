"""Rows: room ahead, memory while restoring and running, and a state that agrees with its count."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache

from mlx_backend.checkpoints import LeafState, MlxCheckpoint
from mlx_backend.errors import ModelUnsupported, RestoreFailed, StateMismatch, StepFailed
from mlx_backend.interface import Snapshot
from mlx_backend.layers import arrays_of, classify, leaf_caches
from mlx_backend.messages import CacheKind
from mlx_backend.rows import fresh_row, offsets, restore_row
from mlx_backend.snapshots import Block, MlxSpan
from mlx_backend.tiny_models import build
from tests.mlx_backend.tiny_rows import (
    KEPT_KINDS,
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
SLICEABLE, CHECKPOINTED = CacheKind.SLICEABLE, CacheKind.CHECKPOINTED


def made_up_span(layout, length):
    """A span of zeros, made without reading `length` tokens."""
    blocks = []
    for start in range(0, length, 1024):
        tokens = min(1024, length - start)
        arrays = [
            mx.zeros((len(g.members), g.shape.heads, tokens, g.shape.dim), g.shape.dtype)
            for g in layout.groups
        ]
        mx.eval(arrays)
        blocks.append(Block(tokens, tuple(arrays)))
    return MlxSpan(tuple(blocks))


def made_up_row(kind, length, room, bits=None):
    layout = tiny_layout(kind, bits)
    return restore_row(layout, Snapshot(length, (made_up_span(layout, length),)), room)


@pytest.mark.parametrize(
    ("kind", "cache_kind", "classes"),
    [
        ("tiny-full", SLICEABLE, {"KVCache"}),
        ("tiny-sliding", CHECKPOINTED, {"KVCache", "RotatingKVCache"}),
        ("tiny-hybrid", CHECKPOINTED, {"KVCache", "ArraysCache"}),
        ("mamba2", CHECKPOINTED, {"ArraysCache"}),
        ("llama4", CHECKPOINTED, {"KVCache", "ChunkedKVCache"}),
        ("falcon-h1", CHECKPOINTED, {"KVCache", "ArraysCache"}),
        ("deepseek-v32", SLICEABLE, {"KVCache"}),
        ("concatenating", SLICEABLE, {"ConcatenateKVCache"}),
        ("keeping-ring", CHECKPOINTED, {"RotatingKVCache"}),
        ("idle-layer", SLICEABLE, {"KVCache"}),
        ("unknown", CacheKind.UNCACHEABLE, {"UnknownCache"}),
    ],
)
def test_a_model_is_known_by_the_caches_it_runs_on(kind, cache_kind, classes):
    layout = tiny_layout(kind)
    assert layout.kind is cache_kind
    assert set(layout.class_names) == classes
    assert any("UnknownCache" in warning for warning in layout.warnings) == (kind == "unknown")


def test_quantised_kv_takes_the_place_of_plain_kv_also_inside_a_list():
    layout = tiny_layout("falcon-h1", 8)
    assert set(layout.class_names) == {"ArraysCache", "QuantizedKVCache"}
    assert layout.span_token_bytes < 0.4 * tiny_layout("falcon-h1").span_token_bytes
    assert (
        tiny_layout("tiny-full", 4).span_token_bytes < tiny_layout("tiny-full", 8).span_token_bytes
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("gpt-oss", "attention sinks"), ("deepseek-v32", "multiples of 32"), ("afm7", "multiples")],
)
def test_a_model_that_cannot_run_on_quantised_kv_is_refused_at_load(kind, reason):
    with pytest.raises(ModelUnsupported, match=reason):
        classify(tiny_model(kind), kv_bits=8)


def test_quantised_kv_that_changes_nothing_is_warned_about():
    assert any(
        "kv_bits" in warning for warning in classify(tiny_model("mamba2"), kv_bits=8).warnings
    )


class OneLayer:
    """A model of one KV layer that keeps `kept` of every 2 tokens, with values of width `width`."""

    def __init__(self, kept=2, width=8):
        self.layers, self.kept, self.width = [None], kept, width

    def __call__(self, tokens, cache):
        ids = tokens[:, : tokens.shape[1] * self.kept // 2].astype(mx.float32)
        keys = mx.broadcast_to(ids[:, None, :, None], (1, 1, ids.shape[1], 8))
        return cache[0].update_and_fetch(keys, keys[..., : self.width])


def test_a_layer_that_keeps_less_than_every_token_turns_reuse_off():
    assert classify(OneLayer()).kind is SLICEABLE
    layout = classify(OneLayer(kept=1))
    assert layout.kind is CacheKind.UNCACHEABLE
    assert "counts 2 tokens where 4 were read" in layout.warnings[0]


def test_values_without_width_are_kept_like_any_other():
    model = OneLayer(width=0)
    layout = classify(model)
    row = fresh_row(layout, room=10)
    row.read(model, TOKENS[:9])
    restored = restore_row(layout, Snapshot(9, row.capture_span(0, 9).split(4)), room=20)
    assert restored.caches[0].values.shape == (1, 1, 256, 0)
    assert mx.array_equal(restored.caches[0].keys[:, :, :9], row.caches[0].keys[:, :, :9])
    assert layout.span_token_bytes == 32


def test_a_model_that_cannot_be_run_is_unsupported():
    def broken(tokens, cache):
        raise ValueError("no such kernel")

    broken.layers = []
    with pytest.raises(ModelUnsupported, match="no such kernel"):
        classify(broken)


@pytest.mark.parametrize(
    ("kind", "bits"), [("tiny-full", None), ("tiny-full", 8), ("falcon-h1", None)]
)
def test_a_fresh_row_has_its_buffers_before_it_reads(kind, bits):
    layout = tiny_layout(kind, bits)
    row = fresh_row(layout, room=1000)
    assert row.nbytes == 1024 * layout.span_token_bytes
    assert row.length == 0
    row.check_state()
    for start in range(0, 1000, 250):
        row.read(tiny_model(kind), some_tokens(250, start))
    assert row.nbytes <= 1024 * layout.span_token_bytes + layout.checkpoint_bytes


def test_reading_into_a_fresh_row_gives_what_empty_caches_give():
    row = fresh_row(tiny_layout("tiny-full"), room=500)
    plain = fresh_row(tiny_layout("tiny-full"), room=0)
    assert plain.nbytes == 0
    expected = log_probabilities("tiny-full", plain, TOKENS)
    assert np.array_equal(log_probabilities("tiny-full", row, TOKENS), expected)


def test_more_room_can_be_made_without_changing_the_state():
    row = row_of("tiny-full", [TOKENS])
    twin = restore_row(tiny_layout("tiny-full"), snapshot_of(row), room=201)
    row.reserve(5000)
    assert row.nbytes == 5120 * tiny_layout("tiny-full").span_token_bytes
    assert np.array_equal(decoded("tiny-full", row, TOKENS), decoded("tiny-full", twin, TOKENS))
    row.reserve(10)
    assert row.nbytes == 5120 * tiny_layout("tiny-full").span_token_bytes


@pytest.mark.parametrize(("kind", "bits"), [("tiny-full", None), ("tiny-full", 8)])
def test_restoring_peaks_at_one_row_and_little_more(kind, bits):
    layout = tiny_layout(kind, bits)
    snapshot = Snapshot(19_900, (made_up_span(layout, 20_000),))
    before = live_bytes()
    mx.reset_peak_memory()
    restored = restore_row(layout, snapshot, room=20_000)
    assert mx.get_peak_memory() - before <= 1.02 * restored.nbytes
    assert live_bytes() - before <= 1.01 * restored.nbytes
    assert restored.nbytes == 20_224 * layout.span_token_bytes


def test_a_long_restored_row_is_read_and_decoded_in_place():
    row = made_up_row("tiny-full", 20_000, room=20_100)
    for chunk in ([TOKENS[:4]], TOKENS[:5].reshape(-1, 1)):
        before = live_bytes()
        mx.reset_peak_memory()
        for tokens in chunk:
            row.read(tiny_model("tiny-full"), tokens)
        assert mx.get_peak_memory() - before <= 0.1 * row.nbytes
    assert row.length == 20_009


def test_making_room_copies_one_array_at_a_time():
    row = made_up_row("tiny-full", 20_000, room=0)
    others = live_bytes() - row.nbytes
    mx.reset_peak_memory()
    row.reserve(21_000)
    assert mx.get_peak_memory() - others <= row.nbytes * (1 + 1 / 6)
    assert abs(live_bytes() - others - row.nbytes) < 1024


def test_a_restored_row_has_room_for_its_next_token_whatever_was_asked():
    row = made_up_row("tiny-full", 256, room=0)
    assert row.nbytes == 512 * tiny_layout("tiny-full").span_token_bytes


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_a_restored_row_shares_nothing_with_its_snapshot(kind):
    read = row_of(kind, [TOKENS])
    live_bytes()
    snapshot = snapshot_of(read)
    del read
    others = live_bytes() - sum(span.nbytes for span in snapshot.spans)
    others -= snapshot.checkpoint.nbytes if snapshot.checkpoint else 0
    before = live_bytes()
    row = restore_row(tiny_layout(kind), snapshot, room=300)
    assert abs(live_bytes() - before - row.nbytes) < 1024
    del snapshot
    assert abs(live_bytes() - others - row.nbytes) < 1024


def test_reading_evaluates_the_state_and_never_the_logits():
    model = build("llama", vocabulary_size=20_000)
    row = fresh_row(classify(model), room=512)
    before = live_bytes()
    mx.reset_peak_memory()
    row.read(model, some_tokens(500))
    assert mx.get_peak_memory() - before < 500 * 20_000 * 4 / 2


def test_a_step_that_raises_is_reported_with_its_place():
    def broken(tokens, cache):
        raise RuntimeError("[metal] out of memory")

    row = row_of("tiny-full", [TOKENS[:30]])
    with pytest.raises(StepFailed, match=r"at 30.*out of memory"):
        row.read(broken, TOKENS[:7])
    assert row.length == 30


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_each_layer_counts_the_tokens_that_the_row_counts(kind):
    row = row_of(kind, [TOKENS[:60], TOKENS[60:61], TOKENS[61:70]])
    pairs = zip(row.layout.leaves, offsets(row.caches), strict=True)
    counted = {offset for leaf, offset in pairs if leaf.is_written}
    assert counted <= {70, None}
    row.check_state()


@pytest.mark.parametrize("kind", [kind for kind in KEPT_KINDS if kind != "mamba2"])
def test_nothing_is_captured_from_a_row_whose_layers_disagree(kind):
    row = row_of(kind, [TOKENS[:60]])
    leaf = [cache for cache in leaf_caches(row.caches) if getattr(cache, "offset", 0)][-1]
    leaf.offset -= 1
    with pytest.raises(StateMismatch, match="59 tokens, not 60"):
        row.capture_span(0, 10)
    with pytest.raises(StateMismatch, match="59 tokens, not 60"):
        row.capture_checkpoint()


def test_a_layer_that_wakes_up_after_the_probe_is_noticed():
    row = row_of("idle-layer", [TOKENS[:60]])
    idle = row.caches[-1]
    idle.update_and_fetch(mx.zeros((1, 2, 60, 32)), mx.zeros((1, 2, 60, 32)))
    with pytest.raises(StateMismatch, match="never written"):
        row.capture_span(0, 60)


def test_a_layer_that_is_never_written_takes_no_memory_and_no_part():
    row = row_of("idle-layer", [TOKENS[:60]])
    assert row.nbytes == row_of("llama", [TOKENS[:60]]).nbytes
    assert snapshot_of(row).spans[0].nbytes == 60 * tiny_layout("llama").span_token_bytes


def rejected(kind, snapshot):
    before = live_bytes()
    with pytest.raises(RestoreFailed) as caught:
        restore_row(tiny_layout(kind), snapshot, room=300)
    reason = str(caught.value)
    del caught
    assert live_bytes() <= before
    return reason


def test_a_snapshot_of_another_model_is_rejected():
    snapshot = snapshot_of(row_of("tiny-full", [TOKENS]))
    assert "model" in rejected("afm7", snapshot)
    assert "model" in rejected("deepseek-v32", snapshot)


def test_a_snapshot_of_another_kv_format_is_rejected():
    snapshot = snapshot_of(row_of("tiny-full", [TOKENS], bits=8))
    assert "layers" in rejected("tiny-full", snapshot)


def test_spans_that_end_too_early_are_rejected():
    whole = snapshot_of(row_of("tiny-full", [TOKENS]))
    assert "200 of 201" in rejected("tiny-full", Snapshot(201, whole.spans))
    assert "0 of 1" in rejected("tiny-full", Snapshot(1, ()))


def test_a_missing_or_misplaced_checkpoint_is_rejected():
    whole = snapshot_of(row_of("tiny-sliding", [TOKENS]))
    earlier = snapshot_of(row_of("tiny-sliding", [TOKENS[:90]]))
    assert "checkpoint" in rejected("tiny-sliding", Snapshot(200, whole.spans))
    assert "checkpoint" in rejected("tiny-sliding", Snapshot(200, whole.spans, earlier.checkpoint))


def test_a_checkpoint_of_another_model_is_rejected():
    whole = snapshot_of(row_of("tiny-sliding", [TOKENS]))
    other = snapshot_of(row_of("mamba2", [TOKENS]))
    assert "layers" in rejected("tiny-sliding", Snapshot(200, whole.spans, other.checkpoint))


def test_a_checkpoint_of_other_recurrent_layers_is_rejected():
    snapshot = snapshot_of(row_of("mamba2", [TOKENS]))
    one_each = [
        LeafState(ArraysCache, (), state.arrays[:1]) for state in snapshot.checkpoint.states()
    ]
    checkpoint = MlxCheckpoint.of(200, one_each)
    assert "1 arrays, not 2" in rejected("mamba2", Snapshot(200, snapshot.spans, checkpoint))


def test_a_checkpoint_whose_ring_is_elsewhere_than_its_key_is_rejected():
    whole = snapshot_of(row_of("tiny-sliding", [TOKENS]))
    whole.checkpoint.length = 150
    assert "at 200, not at 150" in rejected(
        "tiny-sliding", Snapshot(150, whole.spans, whole.checkpoint)
    )


def test_nothing_is_restored_for_a_model_with_an_unknown_cache():
    snapshot = snapshot_of(row_of("llama", [TOKENS]))
    assert "unknown" in rejected("unknown", snapshot)
    row = row_of("unknown", [TOKENS])
    row.check_state()
    assert row.nbytes == sum(a.nbytes for cache in row.caches for a in arrays_of(cache)) > 0
