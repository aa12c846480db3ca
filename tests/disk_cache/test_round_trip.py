"""What is written comes back in every bit, as views of one buffer, and other tools can read it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.disk_cache import storing
from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.jobs import Read, ReadDone, Write, Written
from mlx_backend.host_arrays import HostArray
from tests.disk_cache.shelf import (
    block,
    chain_of,
    checkpoint,
    content_of,
    done,
    model_of,
    path_of,
    read,
    same_bits,
    tokens_of,
    written,
)

WIDTHS = {"BOOL": 1, "U8": 1, "F16": 2, "BF16": 2, "U32": 4, "F32": 4, "U64": 8, "C64": 8}
PATIENT = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def arrays(draw: st.DrawFn) -> HostArray:
    """Of any type and shape: whole, in parts, or parts cut out of something larger."""
    dtype = draw(st.sampled_from(sorted(WIDTHS)))
    outer = draw(st.sampled_from([(1, 2), (2, 3), (1, 1), (1, 8)]))
    inner = draw(st.sampled_from([(1,), (7,), (64,), (2, 3), ()]))
    lengths = draw(st.lists(st.integers(0, 70), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    parts = [_part(rng, (*outer, length, *inner), WIDTHS[dtype]) for length in lengths]
    if draw(st.booleans()):
        parts = [np.concatenate([part, part], 2)[:, :, : part.shape[2]] for part in parts]
    if draw(st.booleans()):
        return HostArray(
            dtype, (_part(rng, draw(st.sampled_from([(), (5,), (3, 0)])), WIDTHS[dtype]),)
        )
    return HostArray(dtype, tuple(parts))


def _part(rng: Any, shape: tuple[int, ...], width: int) -> Any:
    count = int(np.prod(shape)) * width
    return rng.integers(0, 256, count).astype(np.uint8).view(f"<u{width}").reshape(shape)


@PATIENT
@given(st.lists(arrays(), max_size=6), st.integers(1, 40), st.text(max_size=30))
def test_arrays_of_every_kind_come_back_in_every_bit(
    tmp_path: Path, contents: list[HostArray], count: int, described: str
) -> None:
    file, content = block(tokens_of(1, count)), Content(tuple(contents), described)
    done(tmp_path, Written, Write(file, content))
    found = done(tmp_path, ReadDone, read(file))
    assert same_bits(found.content, content)
    for array in found.content.arrays:
        assert array.parts[0].flags.aligned


def test_large_arrays_in_parts_are_put_together_in_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    whole = _part(rng, (1, 8, 1024, 128), 2)
    parts = (whole[:, :, :256], whole[:, :, 256:1000], whole[:, :, 1000:])
    file = block(tokens_of(1, 1024))
    done(tmp_path, Written, Write(file, Content((HostArray("BF16", parts),))))
    found = done(tmp_path, ReadDone, read(file)).content.arrays[0]
    assert len(found.parts) == 1
    assert np.array_equal(found.parts[0], whole)


def test_what_was_read_lies_in_the_buffer_and_nowhere_else(tmp_path: Path) -> None:
    small, large = chain_of(tokens_of(1, 700), 100, 700)
    written(tmp_path, small, large)
    first = done(tmp_path, ReadDone, Read(1, large))
    again = done(tmp_path, ReadDone, Read(2, small, first.buffer))
    assert again.buffer is first.buffer
    memory = np.frombuffer(again.buffer, np.uint8)
    assert all(np.shares_memory(array.parts[0], memory) for array in again.content.arrays)
    assert same_bits(again.content, content_of(small))


def test_a_buffer_that_is_too_small_is_left_for_a_larger_one(tmp_path: Path) -> None:
    file = block(tokens_of(1, 700))
    written(tmp_path, file)
    small = bytearray(10)
    found = done(tmp_path, ReadDone, Read(1, file, small))
    assert found.buffer is not small
    assert len(found.buffer) >= found.nbytes == path_of(tmp_path, file).stat().st_size


def test_a_checkpoint_comes_back_with_its_description(tmp_path: Path) -> None:
    tokens = tokens_of(1, 90)
    footing = block(tokens)
    file = checkpoint(tokens[:50], footing)
    written(tmp_path, footing, file)
    found = done(tmp_path, ReadDone, read(file))
    assert same_bits(found.content, content_of(file))
    assert found.content.described == '{"n":1}'


def test_mlx_reads_the_files_by_itself(tmp_path: Path) -> None:
    import mlx.core as mx

    tokens = tokens_of(1, 33)
    footing = block(tokens)
    files = (footing, checkpoint(tokens, footing))
    for file, path in zip(files, written(tmp_path, *files), strict=True):
        arrays, said = mx.load(str(path), return_metadata=True)
        content = content_of(file)
        assert np.array_equal(arrays.pop("tokens"), file.tokens)
        assert set(arrays) == {"0", "1"}
        assert arrays["0"].dtype == mx.bfloat16
        assert np.array_equal(arrays["0"].view(mx.uint16), content.arrays[0].parts[0])
        assert (said["key"], said["kind"], said["end"]) == (file.key, file.kind, str(file.end))


def test_the_tokens_lie_right_behind_the_header(tmp_path: Path) -> None:
    """So that to look through a folder is to read its files' beginnings."""
    file = block(tokens_of(1, 200))
    (path,) = written(tmp_path, file)
    data = path.read_bytes()
    header_end = 8 + int.from_bytes(data[:8], "little")
    assert json.loads(data[8:header_end])["tokens"]["data_offsets"] == [0, 800]
    assert np.array_equal(np.frombuffer(data, "<i4", 200, header_end), file.tokens)


def test_a_disk_that_takes_little_at_a_time_gets_all_in_the_end(tmp_path: Path) -> None:
    def slow(descriptor: int, pieces: Sequence[Any]) -> int:
        some = b"".join(bytes(piece) for piece in pieces)[:37]
        return os.write(descriptor, some)

    file = block(tokens_of(1, 300))
    content = content_of(file)
    with model_of(tmp_path) as model:
        assert storing.write(model, file, content, slow) == storing.nbytes_of(file, content)
    assert same_bits(done(tmp_path, ReadDone, read(file)).content, content)


@pytest.mark.parametrize("count", [1, 2, 17, 1023, 1024])
def test_a_files_size_is_known_before_it_is_written(tmp_path: Path, count: int) -> None:
    file = block(tokens_of(1, count))
    (path,) = written(tmp_path, file)
    assert path.stat().st_size == storing.nbytes_of(file, content_of(file))


def test_what_had_the_name_before_is_replaced(tmp_path: Path) -> None:
    file = block(tokens_of(1, 20))
    (path,) = written(tmp_path, file)
    path.write_bytes(b"something else")
    found = done(tmp_path, Written, Write(file, content_of(file)))
    assert found.nbytes == path.stat().st_size
    assert same_bits(done(tmp_path, ReadDone, read(file)).content, content_of(file))


def test_the_file_of_a_result_is_the_jobs_own(tmp_path: Path) -> None:
    file: StoredFile = block(tokens_of(1, 20))
    assert done(tmp_path, Written, Write(file, content_of(file))).file is file
    found = done(tmp_path, ReadDone, Read(7, file))
    assert (found.file is file, found.ticket) == (True, 7)
