"""The commands for models: fetch, list, choose, load, unload and remove them.

What is on the disk needs no daemon; what is loaded is asked of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.asking import JsonFlag, client_of
from daemon.cli.flags import accepts_settings, only, settings_file
from daemon.cli.output import complain, print_json, say, show
from daemon.errors import CommandFailed, NotRunning
from daemon.settings import Origin, Resolved, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.catalog import Catalog
    from daemon.models import Progress
    from daemon.status import ListedModel

NameArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name that `mlxd models` shows, or a folder.")
]
AnyName = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="As `mlxd models` shows it.", show_default=False),
]


@accepts_settings(only("port"))
def models(resolved: Resolved, as_json: JsonFlag = False) -> None:
    """List the models of this machine; the default has a star."""
    running = running_models(resolved)
    found = catalog_of(resolved).listed() if running is None else running
    if as_json:
        print_json([asdict(model) for model in found])
        return
    from daemon.views.models import models_view

    show(models_view(found))


def pull(
    repo: Annotated[
        str, typer.Argument(metavar="REPO", help="Such as mlx-community/Qwen3-8B-4bit.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Fetch a model from the Hugging Face hub, or what is left of it."""
    from daemon.models import pull as fetch

    with progress_bar(f"Fetching {repo}") as progress:
        model = fetch(repo, progress)
    said = f"{model.repo} is here. `mlxd use {model.repo}` makes it the default."
    say(said, asdict(model), as_json)


@accepts_settings(only("port"))
def rm(
    resolved: Resolved,
    model: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Also the default model.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a model from the disk; one that is loaded is unloaded first."""
    from daemon.models import chosen_on_disk, remove

    catalog = catalog_of(resolved)
    chosen = chosen_on_disk(catalog, model)
    client, running = client_of(resolved), running_models(resolved)
    listed = catalog.listed() if running is None else running
    if not force and any(each.is_default and key_of(each) == chosen.key for each in listed):
        raise CommandFailed(
            f"{chosen.name} is the default; choose another with `mlxd use`, or say --force."
        )
    if any(each.state == "ready" and key_of(each) == chosen.key for each in running or ()):
        client.unload_model(chosen.key)
    remove(chosen)
    say(f"{chosen.name} is deleted.", {"key": chosen.key, "deleted": True}, as_json)


@accepts_settings(only("port"))
def load(resolved: Resolved, model: AnyName = None, as_json: JsonFlag = False) -> None:
    """Load a model now, without a request; the default if none is named."""
    found = client_of(resolved).load_model(model)
    say(f"{found.id} is loaded.", asdict(found), as_json)


@accepts_settings(only("port"))
def unload(resolved: Resolved, model: AnyName = None, as_json: JsonFlag = False) -> None:
    """Give a model's memory back; the next request for it loads it again. Without: all of them."""
    found = client_of(resolved).unload_model(model).data
    loaded = [each.id for each in found if each.state == "ready"]
    words = f"Unloaded. Still loaded: {', '.join(loaded)}." if loaded else "Nothing is loaded."
    say(words, [asdict(each) for each in found], as_json)


@accepts_settings(only("port"))
def use(resolved: Resolved, model: NameArgument, as_json: JsonFlag = False) -> None:
    """Make a model the default: in the settings file, and at once in a daemon that runs."""
    from daemon import config_file
    from daemon.models import chosen_on_disk

    file = settings_file()
    chosen = chosen_on_disk(catalog_of(resolved), model)
    config_file.write_value(file.path, "model", chosen.key)
    try:
        client_of(resolved).use_model(chosen.key)
        words = f"{chosen.name} is the default from now on."
    except NotRunning:
        words = f"{chosen.name} is the default from the next start on."
    if resolve({}, file=settings_file()).origins["model"] is not Origin.FILE:
        complain("The environment says something else, which counts at the next start.")
    say(words, {"model": chosen.key, "path": str(file.path)}, as_json)


def running_models(resolved: Resolved) -> tuple[ListedModel, ...] | None:
    """Those of the daemon that runs; None if there is none."""
    try:
        return client_of(resolved).models().data
    except NotRunning:
        return None


def catalog_of(resolved: Resolved) -> Catalog:
    """The models on the disk, as a daemon with these settings has them."""
    from daemon.models import catalog_on_disk

    settings = resolved.settings
    return catalog_on_disk(
        settings.model, settings.name, settings.alias_models, settings.context_size
    )


def key_of(model: ListedModel) -> str:
    return model.repo or model.folder


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Bytes that are there, of all; on stderr, so that JSON stays alone."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), *speed)
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
