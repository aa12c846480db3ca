"""The files of state in a disk cache's folder, as whoever looks there sees them, and harms them."""

from __future__ import annotations

import json
from pathlib import Path


def state_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in state_files(folder))


def about(file: Path) -> dict[str, str]:
    """What its header says of it."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        said: dict[str, str] = json.loads(opened.read(size))["__metadata__"]
    return said


def flip_a_bit(file: Path, place: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])
