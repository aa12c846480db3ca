"""The real backend: the contract of every backend, and what only arrays can get wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import pytest

from mlx_backend.backend import MlxBackend
from mlx_backend.errors import RestoreFailed, StateMismatch, StepFailed
from mlx_backend.interface import Row, Snapshot
from mlx_backend.memory import Machine, default_cache_bytes, pool_limit_bytes, this_machine
from mlx_backend.messages import Sampling
from mlx_backend.tiny_models import build
from tests.backend_contract import PROMPT, BackendContract, Subject
from tests.benchmarks.memory import ratios
from tests.mlx_backend.conversations import ListeningModel
from tests.mlx_backend.tiny_rows import live_bytes, some_tokens, tiny_layout, tiny_model

GIB = 1 << 30
KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid", "llama4", "concatenating", "afm7"]


def subject_of(kind: str) -> Subject:
    listener = ListeningModel(tiny_model(kind))
    layout = tiny_layout(kind)
    backend = MlxBackend(listener, layout, weight_bytes=GIB)

    def break_step() -> None:
        listener.failures = 1

    def break_row(row: Row) -> None:
        listener.spoilt = row  # type: ignore[assignment]

    return Subject(backend, layout.kind, break_step, break_row)


class TestMlxBackend(BackendContract):
    @pytest.fixture(params=KINDS)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        return subject_of(request.param)


@pytest.fixture
def full() -> Subject:
    """Without the listener, which keeps arrays of its own."""
    layout = tiny_layout("tiny-full")
    backend = MlxBackend(tiny_model("tiny-full"), layout, GIB)
    return Subject(backend, layout.kind, lambda: None, lambda row: None)


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes in use during `work`, beyond those in use before."""
    before = live_bytes()
    mx.reset_peak_memory()
    work()
    return mx.get_peak_memory() - before


def test_reading_computes_no_logits() -> None:
    """They would be the largest array of all: chunk times vocabulary."""
    model = build("tiny-full", vocabulary_size=20_000)
    backend = MlxBackend(model, tiny_layout("tiny-full"), GIB)
    row = backend.open_row(None, 512)
    logits_bytes = 500 * 20_000 * 4
    assert peak_of(lambda: backend.read(row, some_tokens(500))) < logits_bytes / 2


def test_a_failed_first_step_leaves_the_row_to_be_released() -> None:
    listener = ListeningModel(tiny_model("tiny-full"))
    backend = MlxBackend(listener, tiny_layout("tiny-full"), GIB)
    row = backend.open_row(None, 100)
    backend.read(row, PROMPT[:-1])
    listener.failures = 1
    with pytest.raises(StepFailed):
        backend.start_decoding(row, int(PROMPT[-1]), Sampling(), PROMPT)
    backend.release(row)
    assert backend.step() == []


def test_nothing_is_captured_where_layers_disagree(full: Subject) -> None:
    row = full.read(PROMPT)
    row.caches[1].offset += 1  # as after a chunk that only some of the layers have seen
    with pytest.raises(StateMismatch):
        full.backend.capture_span(row, 0, 20)


def test_a_snapshot_of_another_model_is_refused_and_nothing_is_held(full: Subject) -> None:
    other = subject_of("tiny-hybrid")
    snapshot = other.snapshot(other.read(PROMPT))
    before = live_bytes()
    with pytest.raises(RestoreFailed):
        full.backend.open_row(Snapshot(snapshot.length, snapshot.spans), 100)
    assert live_bytes() == before


def test_released_rows_give_their_bytes_back(full: Subject) -> None:
    before = live_bytes()
    rows = [full.decode(PROMPT), full.decode(PROMPT[:20]), full.read(PROMPT)]
    full.steps(rows[:2], 3)
    for row in rows:
        full.backend.release(row)
    del rows, row
    assert live_bytes() == before


def test_capturing_an_interval_copies_that_interval_only(full: Subject) -> None:
    prompt = some_tokens(1000)
    row, other = full.decode(prompt), full.decode(PROMPT)
    for steps, start in ((0, 900), (2, 992)):
        full.steps([row, other], steps)
        peak = peak_of(partial(full.backend.capture_span, row, start, row.length))
        copied_bytes = (row.length - start) * tiny_layout("tiny-full").span_token_bytes
        assert 0.9 * copied_bytes <= peak <= 2 * copied_bytes


def test_reusing_a_long_prompt_takes_little_more_than_its_row() -> None:
    """The benchmark's measurement at a tenth of its size; bytes do not depend on the machine."""
    for name, (ratio, limit) in ratios(tiny_model("tiny-full"), 2000).items():
        assert 0.9 <= ratio <= limit, name


def test_a_process_that_closes_its_backend_ends_cleanly() -> None:
    script = (
        "from tests.mlx_backend.test_backend import subject_of, PROMPT\n"
        "import threading\n"
        "def work():\n"
        "    subject = subject_of('tiny-full')\n"
        "    subject.steps([subject.decode(PROMPT)], 3)\n"
        "    subject.backend.close()\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "print('done')\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_pool_is_limited_by_the_size_of_the_machine() -> None:
    assert pool_limit_bytes(Machine(16 * GIB)) == GIB
    assert pool_limit_bytes(Machine(2 * GIB)) == 256 << 20
    assert pool_limit_bytes(Machine(512 * GIB)) == 4 * GIB
    MlxBackend(tiny_model("tiny-full"), tiny_layout("tiny-full"), GIB)
    assert mx.set_cache_limit(0) == pool_limit_bytes(this_machine())
    mx.set_cache_limit(pool_limit_bytes(this_machine()))


@pytest.mark.parametrize(
    ("machine", "weights", "row", "expected"),
    [
        (Machine(16 * GIB), 4 * GIB, GIB, 4 * GIB),
        (Machine(64 * GIB, 48 * GIB), 8 * GIB, 2 * GIB, 12 * GIB),
        (Machine(64 * GIB, 48 * GIB), 36 * GIB, 4 * GIB, 8 * GIB),
        (Machine(32 * GIB, 22 * GIB), 17 * GIB, 24 * GIB, 2.5 * GIB),
        (Machine(16 * GIB, 12 * GIB), 13 * GIB, 2 * GIB, 0),
    ],
)
def test_the_cache_takes_a_quarter_or_what_is_left_though_a_whole_context_would_leave_nothing(
    machine: Machine, weights: int, row: int, expected: float
) -> None:
    assert default_cache_bytes(machine, weights, row) == expected


def test_memory_of_this_machine_is_known() -> None:
    assert this_machine().memory_bytes > GIB


def test_of_two_models_on_one_thread_each_can_go_first() -> None:
    layout = tiny_layout("tiny-full")
    one, two = (MlxBackend(tiny_model("tiny-full"), layout, GIB) for _ in range(2))
    row = two.open_row(None, 64)
    two.read(row, some_tokens(20))
    one.close()
    two.read(row, some_tokens(20, seed=1))
    two.release(row)
    two.trim_pool()
    two.close()
    three = MlxBackend(tiny_model("tiny-full"), layout, GIB)
    three.release(three.open_row(None, 8))
    three.close()
