"""The settings' table as flags of the command line: one row of the table is one option."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from daemon.config_file import ConfigFile
from daemon.errors import ConfigurationError
from daemon.setting_rows import Setting
from daemon.settings import TABLE, Settings, config_file, resolve

_OURS = re.compile(r"[0-9a-f]{64}|\..*")
"""The name of a model's folder, or of something that is in any folder sooner or later."""


def only(*names: str) -> list[Setting]:
    return [setting for setting in TABLE if setting.name in names]


def settings_file(environment: Mapping[str, str] | None = None) -> ConfigFile:
    """The settings file of this account. Raises ConfigurationError."""
    from daemon import paths

    return config_file(paths.config_file(), environment)


def disk_folder_of(settings: Settings) -> Path:
    """Where what was read is kept on disk."""
    from daemon import paths

    named = settings.disk_cache_folder
    return paths.disk_cache_folder() if named is None else Path(named)


def own_disk_folder_of(settings: Settings) -> Path:
    """The same for who uses it, which takes away what others may do there, as a daemon keeps all of
    it out of backups. Raises ConfigurationError for a named folder with something else in it."""
    from daemon.disk_cache.ledger import NAME

    folder = disk_folder_of(settings)
    if settings.disk_cache_folder is None:
        return folder
    names: list[str] = []
    with suppress(OSError):  # it is told where it is used
        names = sorted(os.listdir(folder))
    others = [name for name in names if not _OURS.fullmatch(name)]
    if others and NAME not in names:
        raise ConfigurationError(
            f"--disk-cache-folder {folder} has something else in it ({others[0]}). Name a folder "
            "that is mlxd's alone: nobody else can read what is in it, and no backup has it."
        )
    return folder


def accepts_settings(
    chosen: Iterable[Setting],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `f(resolved, **others)` a flag for each of the `chosen` settings."""
    rows = tuple(chosen)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            flags = {setting.name: given.pop(setting.name) for setting in rows}
            command(resolve(flags, file=settings_file()), **given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        run.__signature__ = inspect.Signature([*own, *map(_flag, rows)])  # type: ignore[attr-defined]
        return run

    return decorate


def _flag(setting: Setting) -> inspect.Parameter:
    words = f"{setting.help}  [{setting.environment_name}; default: {setting.shown_default}]"
    option = typer.Option(setting.flag, help=words, metavar=setting.values, show_default=False)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[str | None, option],
    )
