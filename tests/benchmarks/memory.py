"""Peak memory of reusing a long prompt: `python -m tests.benchmarks.memory`.

The spans are made up, not read. Above weights and tree (the spans), in units of one row's buffers:

* restore and decode of one request: at most 1.1;
* one more chunk read: at most 1.1, beside the scratch of the same chunk run cold at that depth;
* two requests that come to decode in one batch: at most 2.2 each.

Bytes are counted by the allocator, so that a busy machine changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mlx_backend.blas import prefer_openblas

prefer_openblas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

from mlx_backend.backend import MlxBackend  # noqa: E402
from mlx_backend.interface import Snapshot  # noqa: E402
from mlx_backend.layers import CacheLayout, classify  # noqa: E402
from mlx_backend.messages import Sampling, TokenIds  # noqa: E402
from mlx_backend.snapshots import BLOCK_TOKENS, Block, MlxSpan  # noqa: E402
from tests.benchmarks.decode import random_llama, weight_bytes  # noqa: E402

CHUNK = 256
ANSWER_ROOM = 256
STEPS = 8


def made_up_span(layout: CacheLayout, length: int) -> MlxSpan:
    """A span of noise that fits the model."""
    blocks = []
    for first in range(0, length, BLOCK_TOKENS):
        size = min(BLOCK_TOKENS, length - first)
        arrays = tuple(
            mx.random.normal((len(g.members), g.shape.heads, size, g.shape.dim)).astype(
                g.shape.dtype
            )
            for g in layout.groups
        )
        mx.eval(arrays)
        blocks.append(Block(size, arrays))
    return MlxSpan(tuple(blocks))


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes in use during `work`."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    work()
    mx.synchronize()
    return int(mx.get_peak_memory())


class Measurement:
    """One model, one made-up snapshot, and what is in use beside the rows."""

    def __init__(self, model: Any, length: int) -> None:
        self.model = model
        self.layout = classify(model)
        assert not self.layout.needs_checkpoint, "made-up spans suffice for sliceable models only"
        self.backend = MlxBackend(model, self.layout, weight_bytes(model))
        self.snapshot = Snapshot(length, (made_up_span(self.layout, length),))
        self.prompt = np.resize(np.arange(1000, dtype=np.int32), length + CHUNK + 1)
        self.base = mx.get_active_memory()
        self.row_bytes = (length + CHUNK + ANSWER_ROOM) * self.layout.span_token_bytes

    def open(self) -> Any:
        return self.backend.open_row(self.snapshot, len(self.prompt) - 1 + ANSWER_ROOM)

    def chunk(self) -> TokenIds:
        return self.prompt[self.snapshot.length : -1]

    def decode(self, *rows: Any) -> None:
        for row in rows:
            self.backend.start_decoding(row, int(self.prompt[-1]), Sampling(), self.prompt)
        for _ in range(STEPS):
            assert len(self.backend.step()) == len(rows)

    def cold_scratch(self) -> int:
        """What the chunk takes beside its row, on plain caches as deep as the snapshot."""
        caches = self.open().caches
        before = mx.get_active_memory()

        def run() -> None:
            self.model(mx.array(self.chunk())[None], cache=caches)
            mx.eval([cache.state for cache in caches])

        return peak_bytes(run) - before


def ratios(model: Any, length: int) -> dict[str, tuple[float, float]]:
    """Per scenario the peak above weights and tree in rows, and the limit for it."""
    measured = Measurement(model, length)
    scratch = measured.cold_scratch()
    rows: list[Any] = []

    def above_base(work: Callable[[], object], less: int = 0) -> float:
        return (peak_bytes(work) - measured.base - less) / measured.row_bytes

    found = {
        "restore": (above_base(lambda: rows.append(measured.open())), 1.1),
        "prefill, less the scratch": (
            above_base(lambda: measured.backend.read(rows[0], measured.chunk()), scratch),
            1.1,
        ),
        "decode": (above_base(lambda: measured.decode(rows[0])), 1.1),
    }
    measured.backend.release(rows.pop())

    rows = [measured.open(), measured.open()]
    for row in rows:
        measured.backend.read(row, measured.chunk())
    found["two requests, each"] = (above_base(lambda: measured.decode(*rows)) / 2, 2.2)
    for row in rows:
        measured.backend.release(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model folder; else a random llama")
    parser.add_argument("--tokens", type=int, default=20_000)
    options = parser.parse_args()
    if options.model:
        from mlx_lm import load

        model = load(options.model)[0]
    else:
        model = random_llama()
    print(f"{'peak above weights and tree':<28} {'rows':>6} {'limit':>6}")
    for name, (ratio, limit) in ratios(model, options.tokens).items():
        print(f"{name:<28} {ratio:>6.2f} {limit:>6.1f}")


if __name__ == "__main__":
    main()
