"""`mlxd config`: what each setting is and where it comes from, and the file that keeps them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from daemon.cli.asking import JsonFlag
from daemon.cli.flags import settings_file
from daemon.cli.output import print_json, say, show
from daemon.errors import ConfigurationError
from daemon.settings import TABLE, Resolved, resolve, setting_named


class ConfigAction(StrEnum):
    SET = "set"
    UNSET = "unset"
    PATH = "path"


def config(
    action: Annotated[
        ConfigAction | None,
        typer.Argument(help="Write a key, take it out, or say where the file is. Without: list."),
    ] = None,
    key: Annotated[str | None, typer.Argument(show_default=False)] = None,
    value: Annotated[str | None, typer.Argument(show_default=False)] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show every setting with its origin; write `config.toml`."""
    file = settings_file()
    match action:
        case None:
            _list(resolve({}, file=file), as_json)
        case ConfigAction.PATH:
            say(str(file.path), {"path": str(file.path)}, as_json)
        case ConfigAction.SET:
            if key is None or value is None:
                raise typer.BadParameter("which, and to what? `mlxd config set KEY VALUE`")
            _set(key, value, as_json)
        case ConfigAction.UNSET:
            if key is None:
                raise typer.BadParameter("which one? `mlxd config unset KEY`")
            _unset(key, as_json)


def _list(resolved: Resolved, as_json: bool) -> None:
    if as_json:
        values = (
            {
                "key": setting.name,
                "value": getattr(resolved.settings, setting.name),
                "origin": resolved.origins[setting.name].value,
            }
            for setting in TABLE
        )
        print_json(list(values))
        return
    from daemon.views.configuration import configuration_view

    show(configuration_view(resolved))


def _set(key: str, value: str, as_json: bool) -> None:
    """What the daemon would refuse is refused here, and the file stays as it was."""
    from daemon import config_file

    setting, file = setting_named(key), settings_file()
    try:
        setting.parse(value)
    except ValueError as expected:
        raise ConfigurationError(f"{setting.name} has to be {expected}.") from None
    others = {name: kept for name, kept in file.values.items() if name != setting.name}
    resolve({setting.name: value}, {}, config_file.ConfigFile(file.path, others))
    config_file.write_value(file.path, setting.name, value)
    words = f"{setting.name} = {value} in {file.path}; `mlxd restart` makes it count."
    say(words, {"key": setting.name, "value": value, "path": str(file.path)}, as_json)


def _unset(key: str, as_json: bool) -> None:
    """A key that is no setting, but in the file, is what one wants to be rid of."""
    from daemon import config_file

    file, name = settings_file(), key.replace("-", "_")
    if name not in file.values:
        name = setting_named(key).name
    was_there = config_file.remove_value(file.path, name)
    words = f"{name} is {'out of' if was_there else 'not in'} {file.path}."
    say(words, {"key": name, "removed": was_there, "path": str(file.path)}, as_json)
