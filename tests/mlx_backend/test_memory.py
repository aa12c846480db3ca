"""What mlx is told about memory, and what is made of a machine's size."""

from __future__ import annotations

import ast
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_backend.backend import MlxBackend
from mlx_backend.layers import classify
from mlx_backend.memory import (
    MIN_BUDGET_BYTES,
    DeviceLimits,
    Machine,
    default_budget_bytes,
    limits_on,
    pool_limit_bytes,
    this_machine,
)
from mlx_backend.rows import fresh_row, state_bytes
from tests.mlx_backend.tiny_rows import some_tokens, tiny_layout, tiny_model

GIB = 1 << 30
SOURCES = Path(__file__).parents[2] / "mlx_backend"
WIRES_THE_MAXIMUM = {
    "BatchGenerator",
    "maybe_set_recommended_wired_limit",
    "wired_limit",
    "stream_generate",
    "generate_step",
}


def backend(limits: DeviceLimits) -> MlxBackend:
    return MlxBackend(tiny_model("tiny-full"), tiny_layout("tiny-full"), GIB, limits)


def test_a_wish_for_the_pool_wins_over_the_size_of_the_machine() -> None:
    try:
        assert backend(DeviceLimits(123 << 20)).memory().pool_limit_bytes == 123 << 20
        assert mx.set_cache_limit(0) == 123 << 20
    finally:
        default = backend(DeviceLimits()).memory().pool_limit_bytes
        assert default == pool_limit_bytes(this_machine())


def test_nothing_is_wired_but_the_weights_and_only_if_asked() -> None:
    assert backend(DeviceLimits()).memory().wired_bytes == 0
    mac = Machine(16 * GIB, 12 * GIB)
    asked = DeviceLimits(wire_weights=True)
    assert limits_on(mac, DeviceLimits(), 4 * GIB).wired_bytes == 0
    assert limits_on(mac, asked, 4 * GIB).wired_bytes == 4 * GIB
    assert limits_on(mac, asked, 12 * GIB).wired_bytes == 0
    assert limits_on(Machine(16 * GIB), asked, 4 * GIB).wired_bytes == 0


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.py")), ids=lambda path: path.name)
def test_nothing_is_used_that_wires_the_recommended_maximum(source: Path) -> None:
    tree = ast.parse(source.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
    assert not names & WIRES_THE_MAXIMUM


@pytest.mark.parametrize(
    ("machine", "weights", "expected"),
    [
        (Machine(64 * GIB, 48 * GIB), 8 * GIB, 36 * GIB),
        (Machine(16 * GIB), 2 * GIB, 5 * GIB),
        (Machine(16 * GIB, 12 * GIB), 12 * GIB, MIN_BUDGET_BYTES),
    ],
)
def test_rows_and_cache_take_what_weights_and_scratch_leave(
    machine: Machine, weights: int, expected: int
) -> None:
    assert default_budget_bytes(machine, weights) == expected


@pytest.mark.parametrize("kind", ["tiny-sliding", "keeping-ring"])
def test_a_row_in_the_midst_of_a_chunk_is_no_larger_than_is_reckoned(kind: str) -> None:
    """A ring holds its window and the chunk that is read."""
    model, chunk = tiny_model(kind), 200
    layout = classify(model)
    row = fresh_row(layout, 1024)
    for first in range(0, 1000, chunk):
        row.read(model, some_tokens(1000)[first : first + chunk])
        whole = layout.checkpoint_bytes + chunk * layout.ring_token_bytes
        assert layout.ring_token_bytes > 0
        assert state_bytes(row.caches) <= 1024 * layout.span_token_bytes + whole
