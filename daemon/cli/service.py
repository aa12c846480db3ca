"""The commands that make the daemon a service of this account: thin, over `daemon.service`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.asking import JsonFlag
from daemon.cli.flags import disk_folder_of
from daemon.cli.output import say

if TYPE_CHECKING:
    from daemon.cli.this_mac import ThisMac
    from daemon.status import DaemonStatus


def install(
    menubar: Annotated[
        bool, typer.Option("--menubar", help="Also show it in the menu bar: takes the extra.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start the daemon now and at every login, as a service of this account."""
    mac = _this_mac()
    if menubar:
        from launchd.menubar import require_extra

        require_extra()
    change, found = mac.install()
    if menubar:
        mac.install_menubar()
    words = f"The service is {change}: {answering(found)} It starts at every login."
    where = {"change": change.value, "plist": str(mac.agent.plist), "menubar": menubar}
    say(words, {**where, **_facts(found)}, as_json)


def uninstall(
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also delete settings, logs, mlxd's own models and what was read."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """End the service and take it back; models, settings and what was read stay."""
    from daemon import paths
    from daemon.service import purged

    mac = _this_mac()
    client, disk_folder = mac.client(), disk_folder_of(mac.settings())
    was_there = any([mac.menubar.uninstall(), mac.service().uninstall()])
    deleted = purged(paths.own_folders(), disk_folder, client) if purge else []
    words = ["Uninstalled." if was_there else "There was no service."]
    words += [f"Deleted {folder}." for folder in deleted]
    if not purge:
        words.append("Models, settings and what was read stay: `--purge` deletes them.")
    fields = {"uninstalled": was_there, "deleted": [str(folder) for folder in deleted]}
    say("\n".join(words), fields, as_json)


def start(as_json: JsonFlag = False) -> None:
    """Start the service, and wait until it answers."""
    found = _this_mac().service().start()
    say(f"Started: {answering(found)}", _facts(found), as_json)


def stop(as_json: JsonFlag = False) -> None:
    """Stop the service, until `mlxd start` or the next login."""
    was_running = _this_mac().service().stop()
    words = "Stopped." if was_running else "It was stopped already."
    say(words, {"stopped": True, "was_running": was_running}, as_json)


def restart(as_json: JsonFlag = False) -> None:
    """Start the service anew: for changed settings, or after an upgrade."""
    mac = _this_mac()
    found = mac.service().restart()
    mac.restart_menubar()
    say(f"Restarted: {answering(found)}", _facts(found), as_json)


def menubar() -> None:
    """Run the menu bar's app; `mlxd install --menubar` has it start at login."""
    from daemon.cli.menubar import run

    run(_this_mac())


def answering(found: DaemonStatus) -> str:
    """That it runs, and how far it is."""
    model = found.engine.model
    state = {"ready": f"{model.name} is ready", "loading": "its model is loading"}
    more = state.get(model.state, model.error or f"its model is {model.state}")
    return f"mlxd {found.version} answers on port {found.port}; {more}."


def _facts(found: DaemonStatus) -> dict[str, Any]:
    state = found.engine.model.state
    return {"version": found.version, "port": found.port, "pid": found.pid, "state": state}


def _this_mac() -> ThisMac:
    from daemon.cli.this_mac import this_mac

    return this_mac()
