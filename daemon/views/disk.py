"""What is kept on disk, as `mlxd status` and `mlxd cache --disk` show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from daemon.disk_status import DiskCheck, DiskContents, DiskModelStatus, DiskStatus, StageStatus
from daemon.views.tables import Column, Layout, facts
from daemon.views.words import age, count, counted, duration, listed, plain, share, size

LAYOUT = Layout(
    (
        Column("bytes", 7),
        Column("files", 7),
        Column("blocks", 7),
        Column("checkpoints", 11),
        Column("tokens", 9),
        Column("used", 5),
        Column("", 1),
        Column("model"),
    )
)
IDENTITY_LENGTH = 12
STAGES = {"saved": "on disk", "unloaded": "unloaded"}
"""What a stage of idleness comes to, by its name."""


def disk_view(contents: DiskContents) -> RenderableType:
    listing: Iterable[RenderableType] = [Text("Nothing is kept on disk.")]
    if contents.models:
        listing = models_table(contents.models)
    disk = contents.disk
    told = disk_facts(disk, with_folder=True) if disk.is_on else _left_alone(disk)
    return Group(facts(told), Text(), *listing)


def _left_alone(disk: DiskStatus) -> Iterator[tuple[str, str]]:
    held = f"{size(disk.bytes)} in {counted(disk.files, 'file')}"
    yield "disk", f"{held}, that no daemon uses now"
    yield "", plain(disk.folder)


def models_table(models: Sequence[DiskModelStatus]) -> Iterator[RenderableType]:
    """Of a model that was not loaded in this run no more may be known than its files."""
    yield LAYOUT.header()
    for model in models:
        yield LAYOUT.row(
            size(model.bytes),
            count(model.files),
            _known(model.blocks, model.blocks + model.checkpoints),
            _known(model.checkpoints, model.blocks + model.checkpoints),
            _known(model.tokens, model.tokens),
            age(model.idle_seconds),
            "",
            model_name(model),
        )


def _known(number: int, witness: int) -> str:
    """A number, or that nobody has counted."""
    return count(number) if witness else "-"


def model_name(model: DiskModelStatus) -> str:
    identity = plain(model.identity)[:IDENTITY_LENGTH]
    return f"{plain(model.name)} ({identity})" if model.name else identity


def disk_facts(disk: DiskStatus, *, with_folder: bool = False) -> Iterator[tuple[str, str]]:
    if not disk.is_on:
        yield "disk", _why_off(disk)
        return
    yield "disk", _held(disk)
    if with_folder:
        yield "", plain(disk.folder)
    yield "", _written(disk)
    if disk.hits:
        yield "", _restored(disk)
    yield from (("warning", words) for words in _failures(disk))


def _why_off(disk: DiskStatus) -> str:
    if disk.last_failure:
        return f"nothing is kept there: {plain(disk.last_failure)}"
    return "nothing is kept there: what was read is gone when the daemon ends"


def _held(disk: DiskStatus) -> str:
    if disk.is_scanning and not disk.files:
        return "what is there is being looked through"
    return listed(
        (
            f"{size(disk.bytes)} of {size(disk.max_bytes)} ({share(disk.bytes, disk.max_bytes)}) "
            f"in {counted(disk.files, 'file')}",
            f"{size(disk.unusable_bytes)} of models not loaded yet" if disk.unusable_bytes else "",
            "still being looked through" if disk.is_scanning else "",
            _free(disk),
        )
    )


def _free(disk: DiskStatus) -> str:
    free, floor = size(disk.free_bytes), size(disk.floor_bytes)
    if disk.free_bytes < disk.floor_bytes:
        return f"{free} free: nothing is written below {floor}"
    return f"{free} free, and {floor} stay so"


def _written(disk: DiskStatus) -> str:
    limit = disk.write_bytes_per_day
    return listed(
        (
            f"{size(disk.written_today_bytes)} written today"
            + (f" of {size(limit)} at most" if limit else ""),
            f"{size(disk.pending_bytes)} on their way" if disk.pending_bytes else "",
            f"{counted(disk.evicted_files, 'file')} made room" if disk.evicted_files else "",
            f"{counted(disk.skipped_writes, 'file')} left out for a limit"
            if disk.skipped_writes
            else "",
        )
    )


def _restored(disk: DiskStatus) -> str:
    rate = f" at {size(int(disk.read_bytes_per_second))}/s" if disk.read_bytes_per_second else ""
    return (
        f"{counted(disk.hits, 'request')} got {counted(disk.restored_tokens, 'token')} from there, "
        f"{size(disk.restored_bytes)}{rate}"
    )


def _failures(disk: DiskStatus) -> Iterator[str]:
    failed = listed(
        (
            f"{counted(disk.failed_writes, 'write')} to the disk failed"
            if disk.failed_writes
            else "",
            f"{counted(disk.bad_files, 'file')} on disk could not be used and went"
            if disk.bad_files
            else "",
        )
    )
    last = f"last: {plain(disk.last_failure)}" if disk.last_failure else ""
    if failed or last:
        yield listed((failed, last), "; ")


def check_words(found: DiskCheck) -> str:
    read = f"{counted(found.files, 'file')}, {size(found.bytes)} in {duration(found.seconds)}"
    if found.is_sound:
        return f"Sound: every file is what it was written as ({read})."
    bad = "".join(f"\n  {plain(each)}" for each in found.bad)
    return (
        f"Not sound: {counted(len(found.bad), 'file')} of {read}. What is bad is deleted; what it "
        f"held is read again when it is needed.{bad}"
    )


def stage_words(idle_seconds: float, stages: Sequence[StageStatus]) -> str:
    """How long a model has been idle, which stages of it are reached, and when the next come."""
    return listed((f"for {duration(idle_seconds)}", *map(_stage, stages)))


def _stage(stage: StageStatus) -> str:
    name = STAGES.get(stage.name, plain(stage.name))
    if stage.in_seconds is None:
        return f"never {name}" if stage.after_seconds is None else f"not all {name}"
    return f"{name} in {duration(stage.in_seconds)}" if stage.in_seconds > 0 else name
