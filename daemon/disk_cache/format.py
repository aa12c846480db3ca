"""The bytes of a file of the disk cache: safetensors, so that other tools can read them, too.

A header (its length in 8 bytes, then JSON, padded with spaces) and the arrays end to end. Its
`__metadata__` says what the file is, all of it as text, its checksum first, so that this lies at
the same place in every file; `tokens`, the block's own ids, lie right behind the header. Whoever
wants to know what a file is reads so far and no further, and need not parse the other arrays.

The checksum is CRC-32 (zlib's) of every byte but its own digits. Every array begins at a multiple
of its element's width, the first one at a multiple of `ALIGNMENT`, so that views of what was read
are as good as fresh arrays. Pure: no file is opened here.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daemon.disk_cache.files import (
    BLOCK_TOKENS,
    FORMAT_VERSION,
    Content,
    FileKind,
    StoredFile,
)
from mlx_backend.host_arrays import HostArray

ALIGNMENT = 64
HEADER_BYTES_MOST = 1 << 20
TOKENS = "tokens"
_LENGTH_BYTES = 8
_START = b'{"__metadata__":{"checksum":"'
_METADATA_AT = len(b'{"__metadata__":')
CHECKSUM = slice(_LENGTH_BYTES + len(_START), _LENGTH_BYTES + len(_START) + 8)
"""Where its eight hexadecimal digits are, from the beginning of the file."""

_VERSION = re.compile(rb'","format":"(\d+)",')
_TOKEN_WIDTH = 4
_WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


class BadFile(Exception):
    """A file is not what its name says; the text says in which way."""


@dataclass(frozen=True, slots=True)
class Head:
    """A file as far as its tokens: what it is, and its bytes if it is whole."""

    file: StoredFile
    described: str
    data_at: int
    nbytes: int


def version(start: bytes) -> str:
    """Of which version a file is, by its first 128 bytes. Raises BadFile."""
    data_start(start)
    said = _VERSION.match(start, CHECKSUM.stop)
    if said is None or not start[_LENGTH_BYTES:].startswith(_START):
        raise BadFile("it is no file of this cache")
    return said[1].decode()


def in_file_order(arrays: Sequence[HostArray]) -> list[int]:
    """Numbers of the arrays as they lie in the file: the widest elements first, so that each is
    aligned without a gap, which safetensors has none of."""
    return sorted(range(len(arrays)), key=lambda number: -width(arrays[number].dtype))


def width(dtype: str) -> int:
    """Bytes of one element. Raises BadFile for a type that is not known."""
    if dtype not in _WIDTHS:
        raise BadFile(f"arrays of type {dtype!r} are not known")
    return _WIDTHS[dtype]


def header(file: StoredFile, content: Content) -> bytes:
    """What comes before the tokens, with zeros in place of the checksum."""
    table, data_bytes = _table(file, content.arrays)
    metadata = {
        "checksum": "0" * 8,
        "format": str(FORMAT_VERSION),
        "identity": file.identity,
        "kind": str(file.kind),
        "key": file.key,
        "parent": file.parent,
        "start": str(file.start),
        "end": str(file.end),
        "label": file.label,
        "described": content.described,
        "bytes": str(data_bytes),
    }
    text = json.dumps({"__metadata__": metadata, **table}, separators=(",", ":")).encode()
    token_bytes = len(file.tokens) * _TOKEN_WIDTH
    text += b" " * (-(_LENGTH_BYTES + len(text) + token_bytes) % ALIGNMENT)
    if len(text) > HEADER_BYTES_MOST:
        raise BadFile("its description is too long")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _table(file: StoredFile, arrays: Sequence[HostArray]) -> tuple[dict[str, Any], int]:
    """Where each array lies, and the bytes of all."""
    at = len(file.tokens) * _TOKEN_WIDTH
    table = {TOKENS: {"dtype": "I32", "shape": [len(file.tokens)], "data_offsets": [0, at]}}
    for number in in_file_order(arrays):
        array = arrays[number]
        if any(part.itemsize != width(array.dtype) for part in array.parts):
            raise BadFile(f"a part of array {number} is not of the width of {array.dtype}")
        offsets = [at, at := at + array.nbytes]
        table[str(number)] = {
            "dtype": array.dtype,
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
    return table, at


def data_start(start: bytes | memoryview) -> int:
    """Where the tokens begin, by the first 8 bytes."""
    if len(start) < _LENGTH_BYTES:
        raise BadFile("it is cut short")
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if not CHECKSUM.stop < length <= HEADER_BYTES_MOST:
        raise BadFile("its header cannot be so long")
    return _LENGTH_BYTES + length


def head(start: bytes | memoryview) -> Head:
    """What a file is, by a beginning of it that reaches to the end of its tokens. Raises BadFile.

    A block's tokens have as many bytes as its `end - start` asks for.
    """
    data_at = data_start(start)
    text = bytes(start[_LENGTH_BYTES:data_at])
    if not text.startswith(_START):
        raise BadFile("it is no file of this cache")
    try:
        # The object of text alone: the arrays' table behind it may be long, and is not needed.
        said, _ = json.JSONDecoder().raw_decode(text.decode("ascii"), _METADATA_AT)
        return _head(said, start, data_at)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"its description makes no sense: {error}") from None


def _head(said: dict[str, str], start: bytes | memoryview, data_at: int) -> Head:
    if not all(isinstance(text, str) for text in said.values()):
        raise BadFile("its description is not all text")
    if said["format"] != str(FORMAT_VERSION):
        raise BadFile(f"it is of version {said['format']}")
    file = StoredFile(
        identity=said["identity"],
        kind=FileKind(said["kind"]),
        key=said["key"],
        parent=said["parent"],
        start=int(said["start"]),
        end=int(said["end"]),
        label=said["label"],
    )
    count, data_bytes = file.end - file.start, int(said["bytes"])
    most = BLOCK_TOKENS if file.kind is FileKind.BLOCK else 0
    if file.start < 0 or not min(most, 1) <= count <= most or file.end < 1:
        raise BadFile(f"it cannot be of the tokens from {file.start} to {file.end}")
    tokens_end = data_at + count * _TOKEN_WIDTH
    if len(start) < tokens_end or data_bytes < count * _TOKEN_WIDTH:
        raise BadFile("it is cut short")
    tokens = np.frombuffer(start, dtype="<i4", count=count, offset=data_at).astype(np.int32)
    nbytes = data_at + data_bytes
    file = replace(file, tokens=tokens, nbytes=nbytes)
    return Head(file, said["described"], data_at, nbytes)


def bytes_to_tokens_end(data_at: int) -> int:
    """As much of a file as says what it is, if its header ends at `data_at`."""
    return data_at + BLOCK_TOKENS * _TOKEN_WIDTH


def content(whole: bytearray, found: Head) -> Content:
    """The arrays of a whole file at the beginning of `whole`, as views of it. Raises BadFile."""
    text = bytes(memoryview(whole)[_LENGTH_BYTES : found.data_at])
    try:
        table = json.loads(text)
        arrays = _arrays(table, whole, found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"its table of arrays makes no sense: {error}") from None
    return Content(arrays, found.described)


def _arrays(table: dict[str, Any], whole: bytearray, found: Head) -> tuple[HostArray, ...]:
    del table["__metadata__"]
    count = len(found.file.tokens)
    at = count * _TOKEN_WIDTH
    if table.pop(TOKENS) != {"dtype": "I32", "shape": [count], "data_offsets": [0, at]}:
        raise BadFile("its tokens are not where they belong")
    views: dict[int, HostArray] = {}
    for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"][0]):
        begins, ends = entry["data_offsets"]
        shape, bytes_each = tuple(entry["shape"]), width(entry["dtype"])
        nbytes = math.prod(shape) * bytes_each
        if begins != at or ends - begins != nbytes:
            raise BadFile(f"array {name} is not where it belongs")
        view = np.ndarray(shape, f"<u{bytes_each}", whole, found.data_at + begins)
        views[int(name)] = HostArray(entry["dtype"], (view,))
        at = ends
    if found.data_at + at != found.nbytes:
        raise BadFile("its arrays are not all there")
    return tuple(views[number] for number in range(len(table)))


def checksum(start: bytes | memoryview) -> int:
    """The checksum of a file's beginning, which reaches beyond the digits; go on with `crc32`."""
    return zlib.crc32(start[CHECKSUM.stop :], zlib.crc32(start[: CHECKSUM.start]))


def digits(crc: int) -> bytes:
    return b"%08x" % crc
