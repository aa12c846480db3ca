"""What every backend must do, the real one and the tests' own: subclass and give a `subject`.

The tests speak only of `mlx_backend.interface`. Ids stay under 250, which is in every vocabulary.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from mlx_backend.errors import RestoreFailed, StepFailed
from mlx_backend.host_arrays import HostArray, end_to_end
from mlx_backend.interface import Backend, Row, Snapshot
from mlx_backend.messages import CacheKind, Sampling, TokenIds

HEAD = np.random.default_rng(1).integers(0, 250, 40).astype(np.int32)
TAIL = np.random.default_rng(2).integers(0, 250, 30).astype(np.int32)
PROMPT = np.concatenate([HEAD, TAIL])


@dataclass
class Subject:
    """A backend under test. `break_step` makes the next step raise, `break_row` a row fail soon."""

    backend: Backend
    kind: CacheKind
    break_step: Callable[[], None]
    break_row: Callable[[Row], None]

    def read(self, tokens: TokenIds, snapshot: Snapshot | None = None) -> Row:
        """A row that holds `tokens`, what the snapshot lacks read in chunks of 16."""
        row = self.backend.open_row(snapshot, len(tokens) + 32)
        for start in range(row.length, len(tokens), 16):
            self.backend.read(row, tokens[start : start + 16])
        return row

    def decode(
        self,
        prompt: TokenIds,
        snapshot: Snapshot | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        first_index: int = 0,
    ) -> Row:
        """A decoding row that has read `prompt` and taken no step."""
        row = self.read(prompt[:-1], snapshot)
        self.backend.start_decoding(row, int(prompt[-1]), sampling, prompt, first_index)
        return row

    def steps(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """The tokens of `count` steps, per row; every step must serve exactly these rows."""
        tokens: list[list[int]] = [[] for _ in rows]
        for _ in range(count):
            sampled = self.backend.step()
            assert sorted(id(s.row) for s in sampled) == sorted(map(id, rows))
            for one in sampled:
                assert one.error is None
                tokens[[row is one.row for row in rows].index(True)].append(one.token)
        return tokens

    def snapshot(self, row: Row) -> Snapshot:
        length = row.length
        needs_checkpoint = self.kind is CacheKind.CHECKPOINTED
        checkpoint = self.backend.capture_checkpoint(row) if needs_checkpoint else None
        return Snapshot(length, (self.backend.capture_span(row, 0, length),), checkpoint)

    def through_host(self, snapshot: Snapshot, cuts: Sequence[int] = ()) -> Snapshot:
        """What a snapshot of one span is once it was written and read, in pieces, from `cuts`."""
        (span,) = snapshot.spans
        pieces = [
            self.backend.import_span(read_back(span.host_arrays(start, stop)), 0, stop - start)
            for start, stop in pairwise((0, *cuts, span.length))
        ]
        checkpoint = snapshot.checkpoint and self.backend.import_checkpoint(
            snapshot.length,
            snapshot.checkpoint.described(),
            read_back(snapshot.checkpoint.host_arrays()),
        )
        return Snapshot(snapshot.length, tuple(pieces), checkpoint)

    def answer(self, prompt: TokenIds, snapshot: Snapshot | None = None) -> list[int]:
        """Six tokens of a row that decodes alone."""
        row = self.decode(prompt, snapshot)
        (tokens,) = self.steps([row], 6)
        self.backend.release(row)
        return tokens


def read_back(arrays: Sequence[HostArray]) -> list[HostArray]:
    """Memory of its own, as what comes from a file is: whatever was exported may go away."""
    return [HostArray(array.dtype, (array.joined().copy(),)) for array in arrays]


def same_bits(arrays: Sequence[HostArray], others: Sequence[HostArray]) -> bool:
    return len(arrays) == len(others) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and a.joined().tobytes() == b.joined().tobytes()
        for a, b in zip(arrays, others, strict=True)
    )


class BackendContract:
    """Subclasses define the fixture `subject`."""

    def test_a_fresh_row_is_empty_and_grows_by_what_is_read(self, subject: Subject) -> None:
        row = subject.backend.open_row(None, 100)
        assert row.length == 0
        subject.backend.read(row, HEAD)
        subject.backend.read(row, TAIL)
        assert row.length == len(HEAD) + len(TAIL)
        assert row.nbytes > 0
        counters = subject.backend.counters
        assert (counters.chunks_read, counters.tokens_read) == (2, len(PROMPT))

    def test_each_step_adds_its_token_to_every_decoding_row(self, subject: Subject) -> None:
        first, second = subject.decode(PROMPT), subject.decode(HEAD)
        assert (first.length, second.length) == (len(PROMPT), len(HEAD))
        subject.steps([first, second], 3)
        assert (first.length, second.length) == (len(PROMPT) + 3, len(HEAD) + 3)
        counters = subject.backend.counters
        assert (counters.steps, counters.tokens_decoded) == (3, 6)

    def test_a_step_without_decoding_rows_is_nothing(self, subject: Subject) -> None:
        subject.read(HEAD)
        assert subject.backend.step() == []
        assert subject.backend.counters.steps == 0

    def test_rows_decode_together_as_alone(self, subject: Subject) -> None:
        expected = [subject.answer(PROMPT), subject.answer(HEAD)]
        rows = [subject.decode(PROMPT), subject.decode(HEAD)]
        assert subject.steps(rows, 6) == expected

    def test_a_row_may_join_and_leave_between_any_two_steps(self, subject: Subject) -> None:
        expected = subject.answer(PROMPT)
        first = subject.decode(PROMPT)
        (head,) = subject.steps([first], 2)
        second = subject.decode(HEAD)
        middle, _ = subject.steps([first, second], 2)
        subject.backend.release(second)
        (tail,) = subject.steps([first], 2)
        assert head + middle + tail == expected

    def test_a_restored_row_goes_on_like_one_that_read_it_all(self, subject: Subject) -> None:
        cold = subject.answer(PROMPT)
        snapshot = subject.snapshot(subject.read(HEAD))
        row = subject.backend.open_row(snapshot, len(PROMPT))
        assert row.length == snapshot.length == len(HEAD)
        subject.backend.release(row)
        assert subject.answer(PROMPT, snapshot) == cold
        assert subject.answer(PROMPT, snapshot) == cold  # the first use left it as it was
        assert subject.backend.counters.bytes_restored > 0

    def test_a_capture_leaves_the_row_as_it_was(self, subject: Subject) -> None:
        expected = subject.answer(PROMPT)
        row = subject.decode(PROMPT)
        tokens = []
        for _ in range(6):
            subject.snapshot(row)
            tokens += subject.steps([row], 1)[0]
        assert tokens == expected

    def test_what_a_row_generated_can_be_captured_while_it_decodes(self, subject: Subject) -> None:
        rows = [subject.decode(PROMPT), subject.decode(HEAD)]
        said, _ = subject.steps(rows, 3)
        snapshot = subject.snapshot(rows[0])
        assert snapshot.length == len(PROMPT) + 3
        for row in rows:
            subject.backend.release(row)
        more = np.concatenate([PROMPT, said, TAIL]).astype(np.int32)
        assert subject.answer(more, snapshot) == subject.answer(more)

    def test_spans_cover_what_was_asked_for_and_split_and_join(self, subject: Subject) -> None:
        row = subject.read(PROMPT)
        before = subject.backend.counters.bytes_captured
        span = subject.backend.capture_span(row, 10, 50)
        assert span.length == sum(span.block_lengths()) == 40
        assert subject.backend.counters.bytes_captured - before == span.nbytes
        left, right = span.split(15)
        assert (left.length, right.length) == (15, 25)
        assert left.nbytes + right.nbytes == span.nbytes
        joined = left.join(right)
        assert (joined.length, joined.nbytes) == (40, span.nbytes)

    def test_a_snapshot_of_many_spans_restores_like_one(self, subject: Subject) -> None:
        row = subject.read(HEAD)
        whole = subject.snapshot(row)
        parts = [subject.backend.capture_span(row, a, b) for a, b in ((0, 7), (7, 8), (8, 40))]
        assert subject.answer(
            PROMPT, Snapshot(whole.length, tuple(parts), whole.checkpoint)
        ) == subject.answer(PROMPT)

    def test_a_span_that_reaches_further_is_cut_where_the_model_can_be(
        self, subject: Subject
    ) -> None:
        if subject.kind is not CacheKind.SLICEABLE:
            pytest.skip("needs a checkpoint at the very offset")
        span = subject.snapshot(subject.read(PROMPT)).spans[0]
        assert subject.answer(PROMPT, Snapshot(33, (span,))) == subject.answer(PROMPT)

    def test_a_checkpoint_knows_its_length(self, subject: Subject) -> None:
        if subject.kind is not CacheKind.CHECKPOINTED:
            pytest.skip("the model needs none")
        row = subject.read(HEAD)
        checkpoint = subject.backend.capture_checkpoint(row)
        subject.backend.read(row, TAIL)
        assert checkpoint.length == len(HEAD)
        assert checkpoint.nbytes > 0
        assert checkpoint.array_count > 0

    def test_state_that_went_through_the_hosts_memory_goes_on_as_it_would_have(
        self, subject: Subject
    ) -> None:
        cold = subject.answer(PROMPT)
        row = subject.read(HEAD)
        snapshot = subject.snapshot(row)
        subject.backend.release(row)
        for cuts in ((), (7, 8)):
            assert subject.answer(PROMPT, subject.through_host(snapshot, cuts)) == cold

    def test_so_does_the_state_of_a_row_that_decodes_among_others(self, subject: Subject) -> None:
        rows = [subject.decode(PROMPT), subject.decode(HEAD)]
        said, _ = subject.steps(rows, 3)
        snapshot = subject.through_host(subject.snapshot(rows[0]))
        for row in rows:
            subject.backend.release(row)
        more = np.concatenate([PROMPT, said, TAIL]).astype(np.int32)
        assert subject.answer(more, snapshot) == subject.answer(more)

    def test_spans_that_follow_one_another_can_leave_as_one_and_come_back_in_part(
        self, subject: Subject
    ) -> None:
        row = subject.read(PROMPT)
        checkpoint = subject.snapshot(subject.read(HEAD)).checkpoint
        first, second = (subject.backend.capture_span(row, a, b) for a, b in ((0, 25), (25, 60)))
        whole = read_back(end_to_end([first.host_arrays(3, 25), second.host_arrays(0, 35)]))
        head = subject.backend.import_span(read_back(first.host_arrays(0, 3)), 0, 3)
        middle, tail = (subject.backend.import_span(whole, a, b) for a, b in ((0, 11), (11, 37)))
        assert (head.length, middle.length, tail.length) == (3, 11, 26)
        assert sum(span.nbytes for span in (head, middle, tail)) * 60 == 40 * (
            first.nbytes + second.nbytes
        )
        snapshot = Snapshot(len(HEAD), (head, middle, tail), checkpoint)
        assert subject.answer(PROMPT, snapshot) == subject.answer(PROMPT)

    def test_what_a_file_lacks_or_has_wrong_is_refused(self, subject: Subject) -> None:
        snapshot = subject.snapshot(subject.read(HEAD))
        arrays = snapshot.spans[0].host_arrays(0, 40)
        wrong = HostArray("U16", (np.zeros((1, 1, 40, 3), dtype=np.uint16),))
        for start, stop, bad in ((0, 41, arrays), (0, 40, ()), (0, 40, (*arrays, wrong))):
            with pytest.raises(RestoreFailed):
                subject.backend.import_span(bad, start, stop)
        if snapshot.checkpoint is None:
            return
        described, state = snapshot.checkpoint.described(), snapshot.checkpoint.host_arrays()
        for length, text, bad in (
            (41, described, state),
            (40, "", state),
            (40, "{}", state),
            (40, described, ()),
            (40, described, (wrong,)),
        ):
            with pytest.raises(RestoreFailed):
                subject.backend.import_checkpoint(length, text, bad)

    def test_what_is_kept_outlives_the_backend(self, subject: Subject) -> None:
        snapshot = subject.snapshot(subject.read(HEAD))
        before = read_back(snapshot.spans[0].host_arrays(0, 40))
        subject.backend.close()
        assert same_bits(snapshot.spans[0].host_arrays(0, 40), before)
        if snapshot.checkpoint is not None:
            assert snapshot.checkpoint.described()
            assert snapshot.checkpoint.host_arrays()

    def test_release_is_idempotent_in_every_phase(self, subject: Subject) -> None:
        unread, read = subject.backend.open_row(None, 10), subject.read(HEAD)
        decoding, stepped = subject.decode(HEAD), subject.decode(PROMPT)
        subject.backend.release(decoding)
        subject.steps([stepped], 1)
        for row in (unread, read, decoding, stepped) * 2:
            subject.backend.release(row)
        assert subject.backend.step() == []

    def test_a_failed_step_releases_every_decoding_row_and_no_other(self, subject: Subject) -> None:
        expected = subject.answer(PROMPT)
        rows = [subject.decode(PROMPT), subject.decode(HEAD)]
        waiting = subject.read(PROMPT[:-1])
        subject.steps(rows, 1)
        subject.break_step()
        with pytest.raises(StepFailed):
            subject.backend.step()
        assert subject.backend.step() == []
        for row in rows:
            with pytest.raises(AssertionError):
                subject.backend.capture_span(row, 0, 1)
            subject.backend.release(row)
        subject.backend.start_decoding(waiting, int(PROMPT[-1]), Sampling(), PROMPT)
        assert subject.steps([waiting], 6) == [expected]

    def test_a_failed_row_is_released_and_its_neighbour_goes_on(self, subject: Subject) -> None:
        expected = subject.answer(PROMPT)
        broken, healthy = subject.decode(HEAD), subject.decode(PROMPT)
        _, tokens = subject.steps([broken, healthy], 1)
        subject.break_row(broken)
        failed_after = []
        for _ in range(5):
            for one in subject.backend.step():
                if one.row is healthy:
                    tokens.append(one.token)
                elif one.error is not None:
                    failed_after.append(len(tokens))
        assert tokens == expected
        assert len(failed_after) == 1
        assert failed_after[0] <= 3
        with pytest.raises(AssertionError):
            subject.backend.capture_span(broken, 0, 1)
        subject.backend.release(broken)

    def test_a_row_grows_by_the_bytes_that_were_announced(self, subject: Subject) -> None:
        expected = subject.answer(PROMPT)
        row = subject.read(PROMPT[:-1])
        self._grow(subject, row, [row])
        subject.backend.start_decoding(row, int(PROMPT[-1]), Sampling(), PROMPT)
        (tokens,) = subject.steps([row], 3)
        self._grow(subject, row, [row])
        tokens += subject.steps([row], 3)[0]
        assert tokens == expected
        assert subject.backend.counters.rows_grown == 2

    def test_a_row_grows_among_others(self, subject: Subject) -> None:
        expected = [subject.answer(PROMPT), subject.answer(HEAD)]
        rows = [subject.decode(PROMPT), subject.decode(HEAD)]
        tokens = subject.steps(rows, 3)
        self._grow(subject, rows[0], rows)
        for said, more in zip(tokens, subject.steps(rows, 3), strict=True):
            said += more
        assert tokens == expected

    @staticmethod
    def _grow(subject: Subject, row: Row, rows: Sequence[Row]) -> None:
        before, room = sum(one.nbytes for one in rows), row.room + 700
        cost = subject.backend.growth_bytes(row, room)
        subject.backend.grow_row(row, room)
        assert row.room >= room
        assert abs(sum(one.nbytes for one in rows) - before - cost) < len(rows)
        assert subject.backend.growth_bytes(row, room) == 0

    def test_a_row_that_stopped_decoding_goes_on_as_if_it_had_not(self, subject: Subject) -> None:
        sampling = Sampling(temperature=0.8, seed=5, presence_penalty=0.7, frequency_penalty=0.4)
        through = subject.decode(PROMPT, sampling=sampling)
        neighbour = subject.decode(HEAD)
        (expected, _) = subject.steps([through, neighbour], 9)
        subject.backend.release(through)
        subject.backend.release(neighbour)
        row = subject.decode(PROMPT, sampling=sampling)
        (said,) = subject.steps([row], 4)
        snapshot = subject.snapshot(row)
        drawn = subject.backend.stop_decoding(row)
        assert drawn.error is None
        assert snapshot.length == len(PROMPT) + 4  # what was drawn is not part of it
        assert subject.backend.step() == []
        past = np.concatenate([PROMPT, said, [drawn.token]]).astype(np.int32)
        resumed = subject.decode(past, snapshot, sampling, first_index=5)
        (after,) = subject.steps([resumed], 4)
        assert [*said, drawn.token, *after] == expected

    def test_scores_are_told_to_rows_that_ask_and_to_no_others(self, subject: Subject) -> None:
        rows = [subject.decode(PROMPT, sampling=Sampling(alternatives=3)), subject.decode(HEAD)]
        for _ in range(4):
            asking, other = sorted(subject.backend.step(), key=lambda s: s.row is rows[1])
            assert other.score is None
            assert asking.score is not None
            assert asking.score.token == asking.token
            (best, logprob), *behind = asking.score.alternatives
            assert (best, logprob) == (asking.token, asking.score.logprob)  # greedy: the likeliest
            assert 0 >= logprob >= behind[0][1] >= behind[1][1] > -math.inf
            assert len(behind) == 2

    def test_a_row_may_ask_for_the_drawn_tokens_score_alone(self, subject: Subject) -> None:
        row = subject.decode(PROMPT, sampling=Sampling(alternatives=0))
        (sampled,) = subject.backend.step()
        drawn = subject.backend.stop_decoding(row)
        for one in (sampled, drawn):
            assert one.score is not None
            assert one.score.token == one.token
            assert one.score.alternatives == ()

    def test_a_row_that_stops_leaves_its_neighbour_alone(self, subject: Subject) -> None:
        expected = subject.answer(PROMPT)
        stays, stops = subject.decode(PROMPT), subject.decode(HEAD)
        tokens, _ = subject.steps([stays, stops], 2)
        subject.backend.stop_decoding(stops)
        subject.backend.compact()
        with pytest.raises(AssertionError):
            subject.backend.capture_span(stops, 0, 1)
        tokens += subject.steps([stays], 4)[0]
        assert tokens == expected

    def test_work_on_a_foreign_thread_is_refused(self, subject: Subject) -> None:
        refused = []

        def work() -> None:
            try:
                subject.backend.open_row(None, 10)
            except AssertionError:
                refused.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert refused == [True]

    def test_memory_counts_the_rows(self, subject: Subject) -> None:
        before = subject.backend.memory().active_bytes
        row = subject.read(PROMPT)
        assert subject.backend.memory().active_bytes >= before + row.nbytes
        subject.backend.trim_pool()
