"""Continuous batching: each row as if it were alone, in little memory, one copy at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_backend.backend import MlxBackend
from mlx_backend.grouping import (
    BatchShape,
    growth_tokens,
    may_share,
    next_rebuild,
    padding_tokens,
)
from mlx_backend.layers import classify
from mlx_backend.live_row import LiveRow
from mlx_backend.merging import can_merge, pads_harmlessly
from mlx_backend.messages import Sampling, TokenIds
from mlx_backend.tiny_models import KINDS, build
from tests.mlx_backend.conversations import ListeningModel
from tests.mlx_backend.tiny_rows import live_bytes, some_tokens, tiny_layout, tiny_model

GIB = 1 << 30
ALONE = {"llama4", "concatenating", "keeping-ring", "unknown"}  # no batched form
MISPLACED = {"afm7", "minimax-m3"}  # takes positions from the width of the batch, or blocks
PROMPTS = [some_tokens(n, seed=n) for n in (7, 300, 41, 129, 2)]
LENGTHS = [1, 64, 3, 20, 64]


@dataclass
class Talk:
    """What one row said, with the distribution that each token was followed by."""

    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[np.ndarray] = field(default_factory=list)


class Rig:
    """A backend on a tiny model that is listened to."""

    def __init__(self, kind: str, weight_bytes: int = GIB) -> None:
        self.listener = ListeningModel(tiny_model(kind))
        self.backend = MlxBackend(self.listener, tiny_layout(kind), weight_bytes)

    def start(self, prompt: TokenIds, sampling: Sampling | None = None) -> LiveRow:
        row = self.backend.open_row(None, len(prompt) + 64)
        for first in range(0, len(prompt) - 1, 128):
            self.backend.read(row, prompt[first : min(first + 128, len(prompt) - 1)])
        self.backend.start_decoding(row, int(prompt[-1]), sampling or Sampling(), prompt)
        return row

    def alone(self, prompt: TokenIds, length: int, sampling: Sampling | None = None) -> Talk:
        return self.together([prompt], [length], [0], [sampling or Sampling()])[0]

    def together(
        self,
        prompts: Sequence[TokenIds],
        lengths: Sequence[int],
        arrivals: Sequence[int],
        samplings: Sequence[Sampling] | None = None,
    ) -> list[Talk]:
        """Row i begins before step `arrivals[i]` and is released after `lengths[i]` tokens."""
        talks = [Talk() for _ in prompts]
        rows: dict[int, LiveRow] = {}
        now = 0
        while any(len(t.tokens) < n for t, n in zip(talks, lengths, strict=True)):
            for index, prompt in enumerate(prompts):
                if arrivals[index] == now:
                    rows[index] = self.start(prompt, samplings[index] if samplings else None)
            copies = self.backend.counters.batch_copies
            for one in self.backend.step():
                index = next(i for i, row in rows.items() if row is one.row)
                assert one.error is None
                talks[index].tokens.append(one.token)
                talks[index].log_probabilities.append(self.listener.log_probabilities(one.row))
                if len(talks[index].tokens) == lengths[index]:
                    self.backend.release(one.row)
            assert self.backend.counters.batch_copies - copies <= 1
            now += 1
        return talks


def assert_alike(one: Talk, other: Talk) -> None:
    assert one.tokens == other.tokens
    np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rows_that_come_and_go_say_what_they_would_alone(kind: str) -> None:
    rig = Rig(kind)
    expected = [rig.alone(p, n) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
    assert len(set(expected[1].tokens)) > 5 or kind in MISPLACED  # else tokens prove nothing
    for seed in (1, 2):  # the longest joins, and is joined
        arrivals = np.random.default_rng(seed).integers(0, 30, len(PROMPTS)).tolist()
        for talk, alone in zip(rig.together(PROMPTS, LENGTHS, arrivals), expected, strict=True):
            assert_alike(talk, alone)
    shares = kind not in ALONE | MISPLACED
    assert (rig.backend.counters.batch_copies > 0) == shares


def test_models_that_a_batch_would_mislead_are_found_out() -> None:
    for kind in KINDS:
        layout = tiny_layout(kind)
        assert can_merge(layout.make_caches()) == (kind not in ALONE)
        if kind not in ALONE:
            assert pads_harmlessly(tiny_model(kind), layout) == (kind not in MISPLACED)


class Capricious:
    """Gives batched rows something else for the first so many tokens, as a tie between experts
    does."""

    def __init__(self, capricious_tokens: int) -> None:
        self._model = tiny_model("tiny-full")
        self._left = capricious_tokens

    def __call__(self, inputs: Any, cache: Any) -> Any:
        logits = self._model(inputs, cache=cache)
        if len(inputs) > 1 and self._left:
            self._left -= 1
            return mx.zeros_like(logits)
        return logits


def test_one_token_that_differs_in_a_batch_proves_no_wrong_position() -> None:
    layout = tiny_layout("tiny-full")
    assert pads_harmlessly(Capricious(1), layout)
    assert not pads_harmlessly(Capricious(2), layout)


def test_a_model_whose_rows_decode_in_turn_says_why() -> None:
    assert Rig("tiny-full").backend.warnings == ()
    (no_form,) = Rig("keeping-ring").backend.warnings
    assert "RotatingKVCache" in no_form
    (misplaced,) = Rig("afm7").backend.warnings
    assert "other tokens than alone" in misplaced


def test_a_row_alone_is_never_copied() -> None:
    rig = Rig("tiny-full")
    row = rig.start(PROMPTS[1])
    buffers = [id(cache) for cache in row.caches]
    keys_bytes = row.caches[0].keys.nbytes
    for _ in range(64):
        rig.backend.step()
    assert [id(cache) for cache in row.caches] == buffers
    assert row.caches[0].keys.nbytes == keys_bytes
    assert rig.backend.counters.batch_copies == 0


def test_rows_too_different_decode_in_batches_of_their_own() -> None:
    token_bytes = tiny_layout("tiny-full").span_token_bytes
    rig = Rig("tiny-full", weight_bytes=200 * token_bytes)
    expected = [rig.alone(p, n) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
    rows = [rig.start(prompt) for prompt in PROMPTS]
    for _ in range(3):
        rig.backend.step()
    sharers = sorted(row.sharers for row in rows)
    assert sharers == [2, 2, 3, 3, 3]  # 7, 41, 2; and 129 with 300
    for row in rows:
        rig.backend.release(row)
    for talk, alone in zip(rig.together(PROMPTS, LENGTHS, [0] * 5), expected, strict=True):
        assert_alike(talk, alone)


def test_samplings_and_penalties_stay_with_their_rows() -> None:
    samplings = [
        Sampling(temperature=1.0, seed=5),
        Sampling(),
        Sampling(temperature=0.8, top_p=0.9, top_k=30, seed=6),
        Sampling(temperature=0.7, seed=7, repetition_penalty=1.3, frequency_penalty=0.5),
        Sampling(presence_penalty=2.0, logit_bias=((3, 5.0), (4, -100.0))),
    ]
    rig = Rig("tiny-full")
    lengths = [20, 12, 30, 25, 30]
    expected = [rig.alone(*args) for args in zip(PROMPTS, lengths, samplings, strict=True)]
    plain = [rig.alone(*args) for args in zip(PROMPTS, lengths, strict=True)]
    assert [e.tokens == p.tokens for e, p in zip(expected, plain, strict=True)].count(True) == 1
    talks = rig.together(PROMPTS, lengths, [0, 2, 3, 7, 1], samplings)
    assert [talk.tokens for talk in talks] == [talk.tokens for talk in expected]


def test_a_seed_repeats_an_answer_and_another_changes_it() -> None:
    rig = Rig("tiny-full")
    once, again, other = (
        rig.alone(PROMPTS[2], 20, Sampling(temperature=1.0, seed=seed)) for seed in (1, 1, 2)
    )
    assert once.tokens == again.tokens != other.tokens


def test_a_penalty_that_cannot_be_applied_fails_its_row_alone() -> None:
    rig = Rig("tiny-full")
    expected = rig.alone(PROMPTS[2], 10)
    healthy = rig.start(PROMPTS[2])
    broken = rig.start(PROMPTS[0], Sampling(logit_bias=((10**6, 1.0),)))
    tokens, errors = [], []
    for _ in range(10):
        for one in rig.backend.step():
            if one.row is healthy:
                tokens.append(one.token)
            else:
                errors.append(one.error)
    assert tokens == expected.tokens
    assert len(errors) == 1
    assert "outside the vocabulary" in errors[0]
    assert broken.is_released


def test_a_draw_that_failed_is_still_known_after_its_row_has_joined_a_batch() -> None:
    rig = Rig("tiny-full")
    broken = rig.start(PROMPTS[0])
    rig.listener.spoilt = broken
    (last,) = rig.backend.step()  # the draw in flight is the spoilt one
    assert last.error is None
    healthy = rig.start(PROMPTS[2])
    errors = {one.row: one.error for one in rig.backend.step()}
    assert rig.backend.counters.batch_copies == 1
    assert errors == {broken: "the model's output is not a number", healthy: None}


class NearTies:
    """A model in bfloat16 whose two best logits differ by one step of the type."""

    def __call__(self, tokens: Any, cache: Any) -> Any:
        logits = mx.full((*tokens.shape, 300), 0.5, dtype=mx.bfloat16)
        logits[..., 100] = 1.0
        logits[..., 200] = 1.0078125
        return logits


def test_the_argmax_is_that_of_the_logits_where_log_probabilities_would_tie() -> None:
    layout = tiny_layout("unknown")  # so that nothing is asked of the caches
    backend = MlxBackend(NearTies(), layout, GIB)
    row = backend.open_row(None, 10)
    backend.start_decoding(row, 1, Sampling(), some_tokens(1))
    assert backend.step()[0].token == 200


class NoPositions:
    """A layer without positions: nothing ever looks at the offsets."""

    layers = (None,)

    def __call__(self, tokens: Any, cache: Any) -> Any:
        keys, _ = cache[0].update_and_fetch(*[mx.ones((*tokens.shape, 1, 8)).swapaxes(1, 2)] * 2)
        return mx.zeros((*tokens.shape, 300)) + keys.sum(axis=(1, 2, 3))[:, None, None]


def test_offsets_that_nobody_looks_at_do_not_pile_up(tmp_path: Path) -> None:
    model = NoPositions()
    backend = MlxBackend(model, classify(model), GIB)
    rows = [backend.open_row(None, 10) for _ in range(2)]
    for row in rows:
        backend.start_decoding(row, 1, Sampling(), some_tokens(1))
    for _ in range(200):
        backend.step()
    mx.export_to_dot(str(tmp_path / "graph"), rows[0].caches[0].offset)
    assert (tmp_path / "graph").read_text().count("Add") < 64


def peak_rows(kind: str, length: int, *, rows: int) -> float:
    """The peak of starting and decoding `rows` rows of `length` tokens, in single rows' bytes."""
    backend = MlxBackend(tiny_model(kind), tiny_layout(kind), 1 << 40)
    prompt = some_tokens(length + 1)
    before = live_bytes()
    made = []
    for _ in range(rows):
        made.append(backend.open_row(None, length + 256))
        for first in range(0, length, 512):
            backend.read(made[-1], prompt[first : first + 512])
    one_row = (length + 256) * tiny_layout(kind).span_token_bytes
    live_bytes()
    mx.reset_peak_memory()
    for row in made:
        backend.start_decoding(row, int(prompt[-1]), Sampling(), prompt)
    for _ in range(4):
        assert len(backend.step()) == rows
    assert backend.counters.batch_copies == (rows > 1)
    return (mx.get_peak_memory() - before) / one_row


def test_two_rows_take_little_more_than_two_rows_while_they_join() -> None:
    """Copying all of both at once would be four; layer by layer it is three layers' worth more."""
    layers = len(tiny_model("tiny-full").layers)
    assert peak_rows("tiny-full", 2000, rows=1) <= 1.1
    assert peak_rows("tiny-full", 2000, rows=2) <= 2 * (1 + 1 / layers) + 0.2


def test_a_row_that_leaves_gives_its_memory_back_with_the_next_step() -> None:
    rig = Rig("tiny-full")
    rows = [rig.start(some_tokens(1500, seed=n)) for n in range(3)]
    rig.backend.step()
    together = rows[0].caches[0].keys.nbytes
    rig.backend.release(rows[1])
    rig.backend.step()
    assert rows[0].caches[0].keys.nbytes <= together * 2 / 3
    rig.backend.release(rows[0])
    rig.backend.step()
    assert type(rows[2].caches[0]).__name__ == "KVCache"
    assert rows[2].index == 0
    assert rig.backend.counters.batch_copies == 3


def test_padding_is_what_lies_left_of_the_shorter_rows() -> None:
    assert padding_tokens([5, 9, 2]) == 4 + 7
    assert may_share([100, 50], token_bytes=10, weight_bytes=501)
    assert not may_share([100, 50], token_bytes=10, weight_bytes=500)


@pytest.mark.parametrize(
    ("batches", "weight_bytes", "expected"),
    [
        ([], 100, []),
        ([BatchShape((50,))], 100, []),
        ([BatchShape((50,)), BatchShape((60,))], 100, [0, 1]),
        ([BatchShape((50,)), BatchShape((500,))], 100, []),
        ([BatchShape((500,)), BatchShape((50, 60)), BatchShape((70,))], 100, [1, 2]),
        ([BatchShape((50, 60)), BatchShape((500, 510), has_left=True)], 100, [1]),
        ([BatchShape((50,)), BatchShape((52, 60), has_left=True)], 100, [1, 0]),
        ([BatchShape((10,)), BatchShape((60,)), BatchShape((90,))], 60, [0, 1]),
        ([BatchShape((10,)), BatchShape((300,)), BatchShape((20,))], 0, []),
        ([BatchShape((50,)), BatchShape((50,), is_constrained=True)], 100, []),
        (
            [BatchShape((50,), is_constrained=c) for c in (True, False, True, False)],
            100,
            [0, 2],
        ),
    ],
)
def test_one_rebuild_at_a_time_is_planned(
    batches: list[BatchShape], weight_bytes: int, expected: list[int]
) -> None:
    assert next_rebuild(batches, 1, weight_bytes) == expected


def test_rows_come_together_only_where_there_is_memory_for_the_padding() -> None:
    short = BatchShape((10,), held=256, ahead=246)
    long = BatchShape((200,), held=256, ahead=56)
    growth = 2 * (200 + 246) - 2 * 256
    assert growth_tokens([short, long]) == growth
    assert sorted(next_rebuild([short, long], 3, GIB, spare_bytes=3 * growth)) == [0, 1]
    assert next_rebuild([short, long], 3, GIB, spare_bytes=3 * growth - 1) == []
    left = BatchShape((10,), has_left=True, held=512, ahead=246)
    assert next_rebuild([left], 3, GIB, spare_bytes=0) == [0]  # it only becomes smaller


def test_a_batch_takes_what_was_announced_and_nothing_without_leave() -> None:
    rig = Rig("tiny-full")
    rows = [rig.start(PROMPTS[1]), rig.start(PROMPTS[0])]
    token_bytes = tiny_layout("tiny-full").span_token_bytes
    before = sum(row.nbytes for row in rows)
    longest, ahead = rows[0].length, rows[1].room - rows[1].length
    growth = 2 * (longest + ahead) * token_bytes - before
    rig.backend.step(spare_bytes=growth - 1)
    assert rig.backend.counters.batch_copies == 0
    rig.backend.step(spare_bytes=growth)
    assert rig.backend.counters.batch_copies == 1
    assert sum(row.nbytes for row in rows) == before + growth


def test_what_a_row_leaves_behind_counts_until_it_is_freed() -> None:
    rig = Rig("tiny-full")
    rows = [rig.start(PROMPTS[1]), rig.start(PROMPTS[0])]
    rig.backend.step()
    together = sum(row.nbytes for row in rows)
    rig.backend.release(rows[0])
    assert rows[1].nbytes == together
    rig.backend.compact()
    assert rows[1].nbytes < together / 2
    assert type(rows[1].caches[0]).__name__ == "KVCache"


def test_rows_of_a_larger_model_in_bfloat16_share_a_batch() -> None:
    """The check at load must not take rounding for a wrong position."""
    model = build("llama")
    model.set_dtype(mx.bfloat16)
    assert pads_harmlessly(model, tiny_layout("llama"))
