"""What the daemon says of what it keeps on disk: types like those in `status`.

Sizes are bytes, times seconds, counts tokens unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """What was read, as it is kept on disk. Bytes but for what is named otherwise.

    `bytes` of `files` ≤ `max_bytes`; `usable_bytes` of them are of models that this run has
    loaded and of this version. `free_bytes` of the disk ≥ `floor_bytes`. `pending_bytes` are still
    to be written. `hits` are requests that got something from disk, `restored_tokens` what they
    got; `bad_files` were wrong, unreadable or gone, and are deleted. `skipped_writes` would have
    gone beyond a limit. `read_bytes_per_second` is 0 until something was read. `last_failure` says
    in words what went wrong last, such as why nothing is kept although it should be.
    """

    folder: str = ""
    is_on: bool = False
    is_scanning: bool = False
    bytes: int = 0
    max_bytes: int = 0
    files: int = 0
    usable_bytes: int = 0
    unusable_bytes: int = 0
    free_bytes: int = 0
    floor_bytes: int = 0
    pending_bytes: int = 0
    written_bytes: int = 0
    written_files: int = 0
    written_today_bytes: int = 0
    write_bytes_per_day: int = 0
    evicted_files: int = 0
    skipped_writes: int = 0
    failed_writes: int = 0
    bad_files: int = 0
    hits: int = 0
    restored_tokens: int = 0
    restored_bytes: int = 0
    read_bytes_per_second: float = 0.0
    last_failure: str = ""


@dataclass(frozen=True, slots=True)
class DiskModelStatus:
    """What is on disk of one model. `tokens` counts what forks share once, and is 0, as the two
    numbers before it, unless the model was loaded in this run. `idle_seconds` since any of it was
    used."""

    identity: str
    name: str = ""
    files: int = 0
    bytes: int = 0
    blocks: int = 0
    checkpoints: int = 0
    tokens: int = 0
    is_usable: bool = False
    idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DiskContents:
    """The disk cache, model by model, the last used first."""

    disk: DiskStatus = DiskStatus()
    models: tuple[DiskModelStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskCheck:
    """Every file of the disk cache, read and verified. `bad`: what was wrong with which (by name);
    those are deleted, and what stands on them with them."""

    files: int = 0
    bytes: int = 0
    bad: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        return not self.bad


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage of a model's idleness: `name` is saved (its states are on disk) or unloaded (its
    weights and what is on disk leave memory). It comes `after_seconds` without a request, in
    `in_seconds` if none comes before: 0 when it is due, None when it never is. `is_reached`: it has
    come."""

    name: str
    after_seconds: float | None
    in_seconds: float | None
    is_reached: bool = False
