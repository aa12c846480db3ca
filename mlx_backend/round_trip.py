"""Whether state that leaves the device for a file is the same when it comes back, on this machine.

Asked once for each load, of a row that is there anyway. Files are verified whenever they are read;
that the device takes what is in them for what it once gave, only the device can show.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlx_backend.host_arrays import HostArray
from mlx_backend.interface import Backend, Row
from mlx_backend.messages import CacheKind


def complaint(backend: Backend, row: Row, kind: CacheKind) -> str:
    """What is wrong with a row's state once it was the host's and is the device's again; "" if it
    is the same in every bit."""
    if kind is CacheKind.UNCACHEABLE:
        return ""
    try:
        is_same = _span_is_same(backend, row)
        if kind is CacheKind.CHECKPOINTED:
            is_same = is_same and _checkpoint_is_same(backend, row)
    except Exception as error:  # whatever an array of a new kind makes of itself: it is served
        why = str(error) or type(error).__name__
        return f"nothing is kept on disk of this model: its state cannot come back: {why}"
    return "" if is_same else "nothing is kept on disk of this model: its state comes back changed"


def _span_is_same(backend: Backend, row: Row) -> bool:
    gone = backend.capture_span(row, 0, row.length).host_arrays(0, row.length)
    back = backend.import_span(gone, 0, row.length)
    return _bits(gone) == _bits(back.host_arrays(0, row.length))


def _checkpoint_is_same(backend: Backend, row: Row) -> bool:
    checkpoint = backend.capture_checkpoint(row)
    gone, described = checkpoint.host_arrays(), checkpoint.described()
    back = backend.import_checkpoint(row.length, described, gone)
    return described == back.described() and _bits(gone) == _bits(back.host_arrays())


def _bits(arrays: Iterable[HostArray]) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [(array.dtype, array.shape, array.joined().tobytes()) for array in arrays]
