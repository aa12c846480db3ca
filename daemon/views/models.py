"""The models of this machine: which is the default, what is loaded, what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from daemon.status import ListedModel
from daemon.views.tables import Column, Layout
from daemon.views.words import count, listed, plain, size

LAYOUT = Layout(
    (
        Column("model", justify="left"),
        Column("weights", 8),
        Column("context", 9),
        Column("state", 9, justify="left"),
    )
)


def models_view(models: Iterable[ListedModel]) -> RenderableType:
    """A line for each; the default has a star."""
    rows = [_row(model) for model in models]
    if not rows:
        return Text("No models here. `mlxd pull REPO` fetches one.")
    return Group(LAYOUT.header(), *rows)


def _row(model: ListedModel) -> RenderableType:
    return LAYOUT.row(
        plain(model.id) + (" *" if model.is_default else ""),
        size(model.weight_bytes) if model.weight_bytes else "",
        count(model.context_size) if model.context_size else "",
        model.state,
        note=listed(_remarks(model), "; "),
    )


def _remarks(model: ListedModel) -> Iterator[str]:
    if model.is_default:
        yield "the default"
    if model.repo and model.repo != model.id:
        yield plain(model.repo)
    elif model.folder and not model.repo:
        yield plain(model.folder)
    if model.aliases:
        yield f"also {plain(', '.join(model.aliases))}"
