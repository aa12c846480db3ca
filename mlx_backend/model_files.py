"""A model's files, looked at before anything is loaded: where they are, and whether they are whole.

Nothing is ever downloaded. Headers and sizes are checked, not every byte: a file that was cut
short or an index that names a missing file would otherwise end in a crash or in nonsense.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_backend.errors import ModelDamaged, ModelNotFound, ModelUnsupported

NEEDED_FILES = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja")
"""What of a repository is needed: nothing that is run."""
_MOST_HEADER_BYTES = 100_000_000  # the limit of the safetensors format


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """`length` is the JSON's size in bytes; `spans` each tensor's (start, end) in the file."""

    length: int
    spans: tuple[tuple[int, int], ...]


def find_folder(path_or_repo: str) -> Path:
    """The model's folder: a path, or a hub repository that was downloaded before.

    Raises ModelNotFound.
    """
    path = Path(path_or_repo).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise ModelNotFound(f"{path_or_repo} is a file; a model is a folder.")
    if path_or_repo.startswith(("/", ".", "~")) or path_or_repo.count("/") != 1:
        raise ModelNotFound(f"There is no folder {path_or_repo}.")
    return _downloaded(path_or_repo)


def _downloaded(repo: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        found = snapshot_download(repo, local_files_only=True, allow_patterns=list(NEEDED_FILES))
    except (OSError, ValueError, HFValidationError) as error:
        raise ModelNotFound(
            f"{repo} is neither a folder nor a repository downloaded to this machine. "
            f"Download it first: mlxd pull {repo}"
        ) from error
    return Path(found)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Raises ModelDamaged."""
    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelDamaged(f"{folder / 'config.json'} names no model_type.")
    return config


def refuse_own_code(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises ModelUnsupported for a model that brings the code which runs it."""
    if brings_code(config):
        raise ModelUnsupported(
            f"The model in {folder} wants to run code of its own ({config['model_file']}): read "
            "it first; --trust-remote-code yes runs it."
        )


def brings_code(config: Mapping[str, Any]) -> bool:
    return config.get("model_file") is not None


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} for an optional file that is missing or unreadable."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ModelDamaged(f"{path.parent} has no {path.name}.") from error
    except (OSError, ValueError, RecursionError) as error:
        if optional:
            return {}
        raise ModelDamaged(f"{path} cannot be read: {error}") from error
    return value


def check_weights(folder: Path) -> tuple[Path, ...]:
    """The weight files, each whole. Raises ModelDamaged or ModelUnsupported."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = read_json(index).get("weight_map")
        if not isinstance(named, Mapping):
            raise ModelDamaged(f"{index} has no weight_map.")
        missing = sorted({str(name) for name in named.values() if not (folder / name).is_file()})
        if missing:
            raise ModelDamaged(f"{folder} lacks {', '.join(missing)}, which its index names.")
    files = tuple(sorted(folder.glob("model*.safetensors")))
    if not files:
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".gguf", ".npz"))
        if others:
            raise ModelUnsupported(f"{folder} has weights as {others[0]}, not as safetensors.")
        raise ModelDamaged(f"{folder} has no weights (model*.safetensors).")
    for file in files:
        read_header(file)
    return files


def read_header(file: Path) -> SafetensorsHeader:
    """A safetensors file's header. Raises ModelDamaged if the file is not as long as it says."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(size - 8, _MOST_HEADER_BYTES):
            raise ModelDamaged(f"{file} is cut short or is not a safetensors file.")
        header = opened.read(length)
    try:
        offsets = [
            entry["data_offsets"]
            for name, entry in json.loads(header).items()
            if name != "__metadata__"
        ]
        spans = tuple((8 + length + int(a), 8 + length + int(b)) for a, b in offsets)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelDamaged(f"The header of {file} cannot be read.") from error
    end = max((end for _, end in spans), default=8 + length)
    if end != size:
        raise ModelDamaged(f"{file} is {size} bytes long instead of {end}: download it again.")
    return SafetensorsHeader(length, spans)
