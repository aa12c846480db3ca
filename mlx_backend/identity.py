"""The identity of a model: what everything cached belongs to.

Two models have one identity only if the same ids give the same state: the same weights, read by
the same tokenizer and template, by the same code, into caches of the same classes and format. Since
state outlives upgrades on disk, the code is the exact version of mlx-lm: any other may have put
right how a model is computed. Small weight files are digested whole. Of large ones it would take a
minute, so their headers, both ends of every tensor and the time of the last change stand for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlx_backend.model_files import read_header

SNAPSHOT_FORMAT = 1
"""Raise when spans or checkpoints come to mean something else."""

_WHOLE_BYTES = 32 << 20
_END_BYTES = 1024
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


def identity(
    folder: Path,
    weight_files: Iterable[Path],
    *,
    cache_classes: Iterable[str],
    kv_bits: int | None,
    adapter: Path | None,
    mlx_lm_version: str,
) -> str:
    """The hex digest. Reads some KB per tensor."""
    digest = hashlib.sha256()
    _add(digest, "format", SNAPSHOT_FORMAT, mlx_lm_version, kv_bits, *cache_classes)
    for name in _TEXT_FILES:
        _add_file(digest, folder / name)
    for code in sorted(folder.glob("*.py")):  # of a model that may run its own
        _add_file(digest, code)
    for file in weight_files:
        _add_weights(digest, file)
    if adapter is not None:
        _add_file(digest, adapter / "adapter_config.json")
        for file in sorted(adapter.glob("*.safetensors")):
            _add_weights(digest, file)
    return digest.hexdigest()


def _add(digest: Any, *values: object) -> None:
    digest.update(repr(values).encode())


def _add_file(digest: Any, path: Path) -> None:
    content = path.read_bytes() if path.is_file() else b""
    _add(digest, path.name, hashlib.sha256(content).hexdigest())


def _add_weights(digest: Any, path: Path) -> None:
    found = path.stat()
    if found.st_size <= _WHOLE_BYTES:
        _add_file(digest, path)
        return
    _add(digest, path.name, found.st_size, found.st_mtime_ns)
    header = read_header(path)
    with path.open("rb") as file:
        digest.update(file.read(8 + header.length))
        for start, end in header.spans:
            for place in (start, max(start, end - _END_BYTES)):
                file.seek(place)
                digest.update(file.read(min(_END_BYTES, end - place)))
