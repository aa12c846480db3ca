"""Log-probabilities: the model's own, of every drawn token, whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np
import pytest

from mlx_backend.backend import MlxBackend
from mlx_backend.interface import Sampled, Snapshot
from mlx_backend.live_row import LiveRow
from mlx_backend.messages import Sampling, TokenIds, TokenScore
from mlx_backend.scores import LOWEST, BatchScorer
from tests.mlx_backend.conversations import ListeningModel
from tests.mlx_backend.tiny_rows import some_tokens, tiny_layout, tiny_model

GIB = 1 << 30
PROMPTS = [some_tokens(n, seed=n) for n in (7, 200, 41)]
LIVELY = Sampling(
    temperature=1.3, top_k=9, seed=3, frequency_penalty=0.5, logit_bias=((5, 3.0),), alternatives=4
)


@dataclass
class Heard:
    """A row's tokens with what was told of each, and what the model's logits said before it."""

    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore | None] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)


class Rig:
    """A backend on a tiny model that is listened to."""

    def __init__(self, kind: str = "tiny-full") -> None:
        self.listener = ListeningModel(tiny_model(kind))
        self.backend = MlxBackend(self.listener, tiny_layout(kind), GIB)

    def start(
        self, prompt: TokenIds, sampling: Sampling, snapshot: Snapshot | None = None, said: int = 0
    ) -> LiveRow:
        row = self.backend.open_row(snapshot, len(prompt) + 64)
        if row.length < len(prompt) - 1:
            self.backend.read(row, prompt[row.length : -1])
        self.backend.start_decoding(row, int(prompt[-1]), sampling, prompt, said)
        return row

    def hear(self, rows: Sequence[LiveRow], heard: Sequence[Heard], steps: int) -> None:
        """What the rows say in so many steps; `logprobs` are those each token was drawn from."""
        for _ in range(steps):
            before = [self.listener.log_probabilities(row) for row in rows]
            for one in self.backend.step():
                index = next(i for i, row in enumerate(rows) if row is one.row)
                note(heard[index], one)
                heard[index].logprobs.append(before[index])


def note(heard: Heard, one: Sampled) -> None:
    assert one.error is None
    heard.tokens.append(one.token)
    heard.scores.append(one.score)


def assert_true(heard: Heard, count: int) -> None:
    """Every score is what the model's logits say, and names the likeliest in order."""
    for token, score, logprobs in zip(heard.tokens, heard.scores, heard.logprobs, strict=True):
        assert score is not None
        assert score.token == token
        assert score.logprob == pytest.approx(logprobs[token], abs=1e-4)
        expected = sorted(logprobs.tolist(), reverse=True)[:count]
        assert [value for _, value in score.alternatives] == pytest.approx(expected, abs=1e-4)
        for other, value in score.alternatives:
            assert value == pytest.approx(logprobs[other], abs=1e-4)


def assert_same(told: Sequence[TokenScore | None], expected: Sequence[TokenScore | None]) -> None:
    """Batches may round differently."""
    for one, other in zip(told, expected, strict=True):
        assert one is not None
        assert other is not None
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        values = [[value for _, value in score.alternatives] for score in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


@pytest.mark.parametrize("sampling", [Sampling(alternatives=4), LIVELY], ids=["greedy", "lively"])
def test_a_score_is_the_models_own_whatever_the_sampling_does_to_it(sampling: Sampling) -> None:
    rig, heard = Rig(), Heard()
    row = rig.start(PROMPTS[0], sampling)
    rig.hear([row], [heard], 12)
    assert_true(heard, 4)
    drawn = [heard.scores[i].alternatives[0][0] for i in range(12)]  # type: ignore[union-attr]
    assert (drawn == heard.tokens) == (sampling.temperature == 0)


@pytest.mark.parametrize("kind", ["tiny-full", "tiny-sliding", "tiny-hybrid", "concatenating"])
def test_scores_stay_with_their_rows_while_others_join_and_leave(kind: str) -> None:
    rig = Rig(kind)
    samplings = [LIVELY, Sampling(), Sampling(temperature=1.0, seed=8, alternatives=2)]
    alone = [Heard() for _ in PROMPTS]
    for prompt, sampling, heard in zip(PROMPTS, samplings, alone, strict=True):
        row = rig.start(prompt, sampling)
        rig.hear([row], [heard], 9)
        rig.backend.release(row)
    together = [Heard() for _ in PROMPTS]
    rows = [rig.start(PROMPTS[0], samplings[0])]
    for index in (1, 2):
        rig.hear(rows, together, 3)
        rows.append(rig.start(PROMPTS[index], samplings[index]))
    rig.hear(rows, together, 3)
    rig.backend.release(rows.pop(0))
    rig.hear(rows, together[1:], 3)
    assert together[1].scores == [None] * 9
    for index in (0, 2):
        length = len(together[index].tokens)
        assert together[index].tokens == alone[index].tokens[:length]
        assert_same(together[index].scores, alone[index].scores[:length])


def test_a_parked_rows_scores_go_on_as_if_it_had_not_been() -> None:
    rig, through, before = Rig(), Heard(), Heard()
    row = rig.start(PROMPTS[1], LIVELY)
    rig.hear([row], [through], 10)
    rig.backend.release(row)
    row = rig.start(PROMPTS[1], LIVELY)
    rig.hear([row], [before], 4)
    snapshot = Snapshot(row.length, (rig.backend.capture_span(row, 0, row.length),))
    note(before, rig.backend.stop_decoding(row))
    past = np.concatenate([PROMPTS[1], before.tokens]).astype(np.int32)
    rig.hear([rig.start(past, LIVELY, snapshot, said=5)], [before], 5)
    assert before.tokens == through.tokens
    assert_same(before.scores, through.scores)


def test_rows_that_do_not_ask_cost_no_array() -> None:
    logits = mx.zeros((3, 1, 20))
    silent = BatchScorer([Sampling()] * 3)
    silent.see(logits)
    assert silent.score(mx.array([1, 2, 3])) == ()
    one = BatchScorer([Sampling(), Sampling(alternatives=5), Sampling()])
    one.see(logits)
    assert all(array.shape[0] == 1 for array in one.score(mx.array([1, 2, 3])))


def test_what_the_model_rules_out_has_a_finite_score() -> None:
    scorer = BatchScorer([replace(LIVELY, alternatives=9)])
    scorer.see(mx.array([[[0.0, -mx.inf, 1.0]]]))
    scorer.score(mx.array([1]))
    (score,) = scorer.in_flight.resolved()
    assert score is not None
    assert score.logprob == LOWEST
    assert [token for token, _ in score.alternatives] == [2, 0, 1]
    assert score.alternatives[2][1] == LOWEST
