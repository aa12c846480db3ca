"""Arrays of the device: copies that stand alone, and their bits as the host's memory and back.

The device's types go by the names that safetensors has for them. On the host, an array is one of
unsigned integers of the same width: numpy has no bfloat16, and a NaN that went through a
conversion may have lost its payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_backend.errors import RestoreFailed
from mlx_backend.host_arrays import HostArray

DTYPES: dict[str, Any] = {
    "BOOL": mx.bool_,
    "U8": mx.uint8,
    "I8": mx.int8,
    "U16": mx.uint16,
    "I16": mx.int16,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "I32": mx.int32,
    "F32": mx.float32,
    "U64": mx.uint64,
    "I64": mx.int64,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
BITS: dict[int, Any] = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
"""The type of as many bits, by its bytes."""


def copied(parts: Sequence[Any], axis: int = 0) -> Any:
    """`parts` end to end in a buffer of their own, even if there is but one. Lazy."""
    if len(parts) == 1:
        part = parts[0]
        empty = part[:0] if axis == 0 else part[:, :, :0]
        return mx.concatenate([part, empty], axis=axis)
    return mx.concatenate(list(parts), axis=axis)


def on_host(array: Any) -> NDArray[Any]:
    """The memory of a contiguous array, to be read only; the view keeps it alive."""
    bits = np.asarray(array.view(BITS[array.dtype.size]))
    bits.flags.writeable = False
    return bits


def device_dtype(host: HostArray) -> Any:
    """Raises RestoreFailed where no array has such a type, or the memory is not of its width."""
    dtype = DTYPES.get(host.dtype)
    if dtype is None or any(part.itemsize != dtype.size for part in host.parts):
        raise RestoreFailed(f"an array of a type that nothing has here: {host.dtype[:20]!r}")
    return dtype


def on_device(hosts: Sequence[HostArray]) -> tuple[Any, ...]:
    """Copies of `hosts`, evaluated. Raises RestoreFailed as `device_dtype` does.

    They are written through views of the new arrays: unlike `mx.array` of numpy's, that lets other
    threads run meanwhile, and joins the parts as it goes.
    """
    dtypes = [device_dtype(host) for host in hosts]
    places = [
        mx.zeros(host.shape, BITS[dtype.size]) for host, dtype in zip(hosts, dtypes, strict=True)
    ]
    mx.eval(places)
    for host, place in zip(hosts, places, strict=True):
        host.copy_to(np.asarray(place))
    arrays = tuple(place.view(dtype) for place, dtype in zip(places, dtypes, strict=True))
    mx.eval(arrays)
    return arrays
