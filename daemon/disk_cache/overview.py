"""The disk cache model by model, as `mlxd cache --disk` shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from daemon.disk_cache.holdings import Holdings
from daemon.disk_cache.index import DiskIndex
from daemon.disk_cache.jobs import FoundFile
from daemon.disk_status import DiskModelStatus


def models(
    holdings: Holdings,
    idle_seconds: Callable[[str, float], float],
    names: Mapping[str, str],
) -> tuple[DiskModelStatus, ...]:
    """Those that anything is there of, the last used first.

    `idle_seconds` of a model, given the last use that its files know of, in seconds of the epoch;
    `names` of models by their identities.
    """
    unread: dict[str, list[FoundFile]] = {}
    for file in holdings.listed():
        unread.setdefault(file.identity, []).append(file)

    def listed(identity: str, files: list[FoundFile]) -> DiskModelStatus:
        return DiskModelStatus(
            identity,
            names.get(identity, ""),
            files=len(files),
            bytes=sum(file.nbytes for file in files),
            idle_seconds=idle_seconds(identity, max(file.used_at for file in files)),
        )

    def indexed(index: DiskIndex) -> DiskModelStatus:
        return DiskModelStatus(
            index.identity,
            names.get(index.identity, ""),
            files=index.file_count,
            bytes=index.nbytes,
            blocks=index.block_count,
            checkpoints=index.file_count - index.block_count,
            tokens=index.token_count,
            is_usable=True,
            idle_seconds=idle_seconds(index.identity, index.last_used_at),
        )

    found = [indexed(index) for index in holdings.indexes.values() if index.file_count]
    found += [listed(identity, files) for identity, files in unread.items()]
    return tuple(sorted(found, key=lambda model: model.idle_seconds))
