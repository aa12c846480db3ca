"""20,000 tokens from the page cache, as the daemon restores them, beside `mx.load` of one file.

Files of 1,024 tokens are read and verified by a disk thread, imported as spans by this one, and a
row is made of them. `mx.load` gets the same tokens, in the form in which mlx-lm saves a prompt's
cache. A daemon that was just started has no memory that it used before, and fresh pages cost more
than all the rest: so each measurement is made once in a process of its own, both in turns.

A row is made of what is in memory, too, and costs there the same: the target is for what comes
before it.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mlx_backend.blas import prefer_openblas

prefer_openblas()

import mlx.core as mx  # noqa: E402

from daemon.disk_cache.files import BLOCK_TOKENS, Content, FileKind, KeyChain, StoredFile  # noqa: E402
from daemon.disk_cache.jobs import JobQueue, ReadDone, ReadFailed, Result, Stop, Write  # noqa: E402
from daemon.disk_cache.labor import work  # noqa: E402
from daemon.disk_cache.reads import Reads  # noqa: E402
from mlx_backend.importing import import_span  # noqa: E402
from mlx_backend.interface import Snapshot  # noqa: E402
from mlx_backend.layers import CacheLayout, classify, slots_of  # noqa: E402
from mlx_backend.messages import token_ids  # noqa: E402
from mlx_backend.rows import restore_row  # noqa: E402
from mlx_backend.snapshots import MlxSpan, capture_span  # noqa: E402

IDENTITY = "made-up"
READ_AHEAD = 2
RATIO_TARGET = 0.7


@dataclass(frozen=True)
class Shape:
    """Of a model of 7 billion parameters: 57 kB of bfloat16 per token."""

    layers: int = 28
    heads: int = 4
    dim: int = 128


class KeepsOnly:
    """A model that does nothing but keep keys and values of some shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.layers = [None] * shape.layers

    def __call__(self, tokens: Any, cache: Sequence[Any]) -> Any:
        size = (1, self.shape.heads, tokens.shape[1], self.shape.dim)
        for layer in cache:
            layer.update_and_fetch(mx.ones(size, mx.bfloat16), mx.ones(size, mx.bfloat16))
        return tokens


@dataclass(frozen=True)
class Measured:
    """Seconds until there were arrays, on the clock and of processors, and until there was a row;
    the bytes of the arrays."""

    nbytes: int
    arrays: float
    processors: float
    row: float = 0.0


def layout_of(shape: Shape) -> CacheLayout:
    return classify(KeepsOnly(shape))


def blocks(count: int) -> Iterator[StoredFile]:
    """Descriptions of the files that hold `count` tokens, in order."""
    chain, parent = KeyChain(IDENTITY), ""
    for start in range(0, count, BLOCK_TOKENS):
        end = min(start + BLOCK_TOKENS, count)
        tokens = token_ids(range(start, end))
        key = chain.extend(tokens)
        yield StoredFile(IDENTITY, FileKind.BLOCK, key, parent, start, end, tokens)
        parent = key


def prepare(folder: Path, count: int) -> None:
    """Write the same tokens as blocks and as one file; both are in the page cache then."""
    model = KeepsOnly(Shape())
    layout = classify(model)
    caches = layout.make_caches()
    for file in blocks(count):
        model(mx.array(file.tokens)[None], caches)
        mx.eval([(cache.keys, cache.values) for cache in caches])
    jobs, results = JobQueue(), SimpleQueue[Result]()
    for file in blocks(count):
        span = capture_span(layout, caches, file.start, file.end)
        jobs.put(Write(file, Content(span.host_arrays(0, span.length))))
    jobs.put(Stop())
    work(folder, jobs, results.put)
    arrays = {
        f"{layer}.{slot}": array[:, :, :count]
        for layer, cache in enumerate(caches)
        for slot, array in enumerate(slots_of(cache))
    }
    mx.save_safetensors(str(whole_file(folder)), arrays)
    whole_file(folder).read_bytes()


def whole_file(folder: Path) -> Path:
    return folder.with_suffix(".safetensors")


def loaded(folder: Path, count: int) -> Measured:
    began, worked = time.perf_counter(), time.process_time()
    arrays = mx.load(str(whole_file(folder)))
    mx.eval(arrays)
    seconds, work_seconds = time.perf_counter() - began, time.process_time() - worked
    assert arrays["0.0"].shape[2] == count
    return Measured(sum(array.nbytes for array in arrays.values()), seconds, work_seconds)


def restored(folder: Path, count: int) -> Measured:
    layout = layout_of(Shape())
    jobs, results = JobQueue(), SimpleQueue[Result]()
    reader = threading.Thread(target=work, args=(folder, jobs, results.put))
    reader.start()
    began, worked = time.perf_counter(), time.process_time()
    spans = _spans(layout, list(blocks(count)), Reads(jobs), results)
    in_spans, work_seconds = time.perf_counter() - began, time.process_time() - worked
    row = restore_row(layout, Snapshot(count, tuple(spans)), count + 1)
    in_row = time.perf_counter() - began
    assert row.length == count
    jobs.put(Stop())
    reader.join()
    return Measured(sum(span.nbytes for span in spans), in_spans, work_seconds, in_row)


def _spans(
    layout: CacheLayout, files: Sequence[StoredFile], reads: Reads, results: SimpleQueue[Result]
) -> list[MlxSpan]:
    spans: list[MlxSpan] = []

    def heard(result: ReadDone | ReadFailed) -> None:
        assert isinstance(result, ReadDone), result
        length = result.file.end - result.file.start
        spans.append(import_span(layout, result.content.arrays, 0, length))
        reads.give_back(result.buffer)

    for file in files[:READ_AHEAD]:
        reads.read(file, heard)
    for number in range(len(files)):
        result = results.get()
        assert isinstance(result, ReadDone | ReadFailed)
        reads.hear(result)
        del result
        if number + READ_AHEAD < len(files):
            reads.read(files[number + READ_AHEAD], heard)
    return spans


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, count = Path(folder) / "disk-cache", options.tokens
        processes = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
        with processes:
            processes.submit(prepare, path, count).result()
            rounds = [
                [processes.submit(measure, path, count).result() for measure in (loaded, restored)]
                for _ in range(options.rounds)
            ]
    report(count, [one for one, _ in rounds], [other for _, other in rounds])


def report(count: int, loads: Sequence[Measured], restores: Sequence[Measured]) -> None:
    nbytes = restores[0].nbytes
    load, work_seconds = (
        min(getattr(one, name) for one in loads) for name in ("arrays", "processors")
    )
    print(f"{count:,} tokens, {nbytes / 1e9:.2f} GB, the best of {len(loads)} rounds")
    for what, seconds, base in (
        ("mx.load of one file", load, load),
        (f"blocks into spans (target {RATIO_TARGET})", min(r.arrays for r in restores), load),
        ("… by processor time", min(r.processors for r in restores), work_seconds),
        ("blocks into a row", min(r.row for r in restores), load),
    ):
        rate, ratio = nbytes / seconds / 1e9, base / seconds
        print(f"  {what:32} {seconds:6.3f} s {rate:6.2f} GB/s, ratio {ratio:.2f}")
