"""`mlxd cache --disk`: through the daemon while one keeps the folder, else on the folder itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import typer

from daemon.cli.exits import ExitCode
from daemon.cli.output import print_json, say, show
from daemon.errors import CommandFailed, NotRunning

if TYPE_CHECKING:
    from pathlib import Path

    from daemon.client import Client
    from daemon.disk_status import DiskCheck, DiskContents


class CacheAction(StrEnum):
    """What can be done with a cache, in memory or on disk."""

    CLEAR = "clear"
    CHECK = "check"


class DiskKeeper(Protocol):
    """Who looks after what is on disk."""

    def disk(self) -> DiskContents: ...

    def clear_disk(self) -> DiskContents: ...

    def check_disk(self) -> DiskCheck: ...


def keeper(client: Client, folder: Path) -> DiskKeeper:
    """The daemon, unless there is none, or one that keeps nothing on disk: then the folder."""
    try:
        if client.status().engine.disk.is_on:
            return client
    except NotRunning:
        pass
    return FolderAlone(folder)


class FolderAlone:
    """The folder without a daemon. Methods raise CommandFailed if it cannot be read or changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def disk(self) -> DiskContents:
        from daemon.disk_cache.offline import inventory

        with self._told():
            return inventory(self._folder)

    def clear_disk(self) -> DiskContents:
        from daemon.disk_cache.offline import clear

        with self._told():
            clear(self._folder)
        return self.disk()

    def check_disk(self) -> DiskCheck:
        from daemon.disk_cache.offline import check

        with self._told():
            return check(self._folder)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            from daemon.disk_cache.folder import in_words

            raise CommandFailed(f"{self._folder} cannot be used: {in_words(error)}") from error


def on_disk(disk: DiskKeeper, action: CacheAction | None, as_json: bool) -> None:
    """List what is on disk, or do something with it; a bad file exits with FAILED, although it is
    gone then."""
    match action:
        case None:
            _list(disk.disk(), as_json)
        case CacheAction.CLEAR:
            left = disk.clear_disk()
            files = left.disk.files
            words = f"{files:,} file{' is' if files == 1 else 's are'} left on disk."
            say(f"Cleared: {words}", asdict(left), as_json)
        case CacheAction.CHECK:
            _tell_check(disk.check_disk(), as_json)


def _list(contents: DiskContents, as_json: bool) -> None:
    if as_json:
        print_json(asdict(contents))
        return
    from daemon.views.disk import disk_view

    show(disk_view(contents))


def _tell_check(found: DiskCheck, as_json: bool) -> None:
    from daemon.views.disk import check_words

    say(check_words(found), asdict(found), as_json)
    if not found.is_sound:
        raise typer.Exit(ExitCode.FAILED)
