"""`mlxd config` as a table: what each setting is, and who says so."""

from __future__ import annotations

from rich.console import Group, RenderableType

from daemon.setting_rows import Setting
from daemon.settings import TABLE, Origin, Resolved
from daemon.views.tables import Column, Layout

ORIGINS = {
    Origin.DEFAULT: "",
    Origin.FILE: "config.toml",
    Origin.ENVIRONMENT: "environment",
    Origin.FLAG: "flag",
}


def configuration_view(resolved: Resolved) -> RenderableType:
    """One line for each setting; those that are as they come have no origin."""
    width = max(len(setting.name) for setting in TABLE)
    layout = Layout(
        (
            Column("setting", width, justify="left"),
            Column("value", justify="left"),
            Column("from", 11, justify="left"),
        )
    )
    rows = [
        layout.row(setting.name, _value(setting, resolved), ORIGINS[resolved.origins[setting.name]])
        for setting in TABLE
    ]
    return Group(layout.header(), *rows)


def _value(setting: Setting, resolved: Resolved) -> str:
    value = getattr(resolved.settings, setting.name)
    if resolved.origins[setting.name] is Origin.DEFAULT:
        return setting.shown_default
    return "none" if value is None else str(value)
