"""Files written and read, one at a time: each byte is copied once and summed once on its way.

An array in parts goes to the file piece by piece, as far as the pieces are worth it; what is read
comes into one buffer, of which the arrays are views.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from daemon.disk_cache import format as layout
from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.folder import opened_file, written
from daemon.disk_cache.format import BadFile, Head
from mlx_backend.host_arrays import TOKEN_AXIS, HostArray

Bytes: TypeAlias = NDArray[np.uint8]
WriteV: TypeAlias = Callable[[int, Sequence[Any]], int]

_STRETCH_BYTES = 1 << 20
"""Read, or written, before it is summed: what stays in the processor's cache meanwhile."""

_PIECES_MOST = 512  # of one call to `writev`: half of what systems allow
_PIECE_BYTES_LEAST = 4096  # below that, joining the parts costs less than their number
_HEAD_GUESS_BYTES = 16_384


def write(model: int, file: StoredFile, content: Content, writev: WriteV = os.writev) -> int:
    """Write one file, whole or not at all; its bytes. Raises OSError, and BadFile for arrays that
    cannot be written."""
    start = layout.header(file, content)
    with written(model, file.name) as descriptor:
        tokens = np.ascontiguousarray(file.tokens, dtype="<i4")
        stretch = _Stretch(descriptor, writev)
        crc = layout.checksum(start)
        stretch.add(np.frombuffer(start, np.uint8))
        for piece in _pieces(tokens, content.arrays):
            crc = zlib.crc32(piece.data, crc)
            stretch.add(piece)
        stretch.flush()
        os.pwrite(descriptor, layout.digits(crc), layout.CHECKSUM.start)
    return stretch.nbytes


def nbytes_of(file: StoredFile, content: Content) -> int:
    """Bytes of the file that `write` would make. Raises BadFile as that does."""
    return len(layout.header(file, content)) + 4 * len(file.tokens) + content.nbytes


class _Stretch:
    """Pieces that are written together. Keeps them until then."""

    def __init__(self, descriptor: int, writev: WriteV) -> None:
        self._descriptor = descriptor
        self._writev = writev
        self._pieces: list[Bytes] = []
        self._waiting = 0
        self.nbytes = 0

    def add(self, piece: Bytes) -> None:
        self._pieces.append(piece)
        self._waiting += piece.nbytes
        if self._waiting >= _STRETCH_BYTES or len(self._pieces) == _PIECES_MOST:
            self.flush()

    def flush(self) -> None:
        while self._pieces:
            taken = self._writev(self._descriptor, self._pieces)
            self.nbytes += taken
            self._waiting -= taken
            self._drop(taken)

    def _drop(self, taken: int) -> None:
        whole = 0
        while whole < len(self._pieces) and taken >= self._pieces[whole].nbytes:
            taken -= self._pieces[whole].nbytes
            whole += 1
        del self._pieces[:whole]
        if taken:
            self._pieces[0] = self._pieces[0][taken:]


def _pieces(tokens: NDArray[np.int32], arrays: Sequence[HostArray]) -> Iterator[Bytes]:
    """Everything behind the header, in stretches of at most `_STRETCH_BYTES`."""
    yield from _stretches(tokens)
    for number in layout.in_file_order(arrays):
        for piece in _in_order(arrays[number]):
            yield from _stretches(np.ascontiguousarray(piece))


def _stretches(piece: NDArray[Any]) -> Iterator[Bytes]:
    flat = piece.reshape(-1).view(np.uint8)
    for at in range(0, flat.nbytes, _STRETCH_BYTES):
        yield flat[at : at + _STRETCH_BYTES]


def _in_order(array: HostArray) -> Iterator[NDArray[Any]]:
    """Pieces of an array in the order of its elements, views as far as that is worth it."""
    if len(array.parts) == 1 and array.parts[0].flags.c_contiguous:
        yield array.parts[0]
        return
    outer = array.shape[:TOKEN_AXIS]
    pieces = len(array.parts) * int(np.prod(outer))
    if len(array.shape) <= TOKEN_AXIS or array.nbytes < pieces * _PIECE_BYTES_LEAST:
        yield array.joined()
        return
    for place in np.ndindex(*outer):
        yield from (part[place] for part in array.parts)


def read_head(model: int, name: str) -> Head:
    """What a file is, without its arrays. Raises OSError and BadFile.

    A file that is cut short, or too long, is found by its size; what else is wrong with its arrays
    is not.
    """
    with opened_file(model, name) as descriptor:
        return _named(_head(descriptor), name)


def _head(descriptor: int) -> Head:
    start = os.pread(descriptor, _HEAD_GUESS_BYTES, 0)
    needed = layout.bytes_to_tokens_end(layout.data_start(start))
    if needed > len(start) == _HEAD_GUESS_BYTES:
        start += os.pread(descriptor, needed - len(start), len(start))
    return _sized(layout.head(start), os.fstat(descriptor).st_size)


def _sized(head: Head, nbytes: int) -> Head:
    if head.nbytes != nbytes:
        raise BadFile("it is not as long as it says")
    return head


def _named(head: Head, name: str) -> Head:
    if head.file.name != name:
        raise BadFile(f"it says of itself that it is {head.file.name}")
    return head


def read_version(model: int, name: str) -> str:
    """Of which version a file is, by its first bytes. Raises OSError and BadFile."""
    with opened_file(model, name) as descriptor:
        return layout.version(os.pread(descriptor, 128, 0))


def read(model: int, name: str, buffer: bytearray) -> tuple[Head, Content, bytearray]:
    """A whole file, verified; its arrays are views of the buffer that comes back, which is
    `buffer` or a larger one. Raises OSError and BadFile."""
    with opened_file(model, name) as descriptor:
        nbytes = os.fstat(descriptor).st_size
        if nbytes < layout.CHECKSUM.stop:
            raise BadFile("it is cut short")
        if len(buffer) < nbytes:
            _head(descriptor)  # before so much memory is asked for
            buffer = bytearray(-(-nbytes // _STRETCH_BYTES) * _STRETCH_BYTES)
        with memoryview(buffer)[:nbytes] as whole:
            crc = _read_into(descriptor, whole)
            if layout.digits(crc) != whole[layout.CHECKSUM]:
                raise BadFile("its checksum is wrong")
            found = _named(_sized(layout.head(whole), nbytes), name)
    return found, layout.content(buffer, found), buffer


def _read_into(descriptor: int, whole: memoryview) -> int:
    """Fill `whole` from the file; its checksum, summed while each stretch is at hand."""
    crc = at = 0
    while at < len(whole):
        with whole[at : at + _STRETCH_BYTES] as stretch:
            taken = os.readv(descriptor, [stretch])
            if at == 0 and taken >= layout.CHECKSUM.stop:
                crc = layout.checksum(stretch[:taken])
            elif taken and at:
                crc = zlib.crc32(stretch[:taken], crc)
            else:
                raise BadFile("it is cut short")
        at += taken
    return crc
