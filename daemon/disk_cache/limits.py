"""What the disk cache may take of the disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """`max_bytes` and `floor_bytes` (of the disk that stay free): None for a share of the disk.

    `write_bytes_per_day`: None for no limit. `pending_bytes`: handed over and not yet written, at
    most, while the model works; one file is taken in any case.
    """

    max_bytes: int | None = None
    floor_bytes: int | None = None
    write_bytes_per_day: int | None = None
    max_files: int = 65_536
    pending_bytes: int = 1 << 30
