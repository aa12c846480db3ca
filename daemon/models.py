"""The models of this machine: what finds, describes, loads, fetches and removes them.

The only module that imports the backend's implementation, inside functions: it costs seconds, and
the rest of the daemon, and of the command line, runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from daemon import paths
from daemon.catalog import Catalog
from daemon.errors import CommandFailed, ConfigurationError, NotFound
from mlx_backend.errors import BackendError
from mlx_backend.interface import LoadedModel, PromptEncoder
from mlx_backend.journal import KEPT_BYTES, Journals, WriteBehind
from mlx_backend.messages import LocalModel, ModelInfo

_JOURNAL_SHARE = 64

Progress = Callable[[int, int | None], None]
"""Called with the bytes got so far and their total, None while that is unknown."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How every model is loaded. `context_size` is an upper bound; the rest as the settings say."""

    kv_bits: int | None = None
    context_size: int | None = None
    pool_bytes: int | None = None
    wire_weights: bool = False
    trust_remote_code: bool = False


class Shelf:
    """The models on this machine's disk. To look takes its time: not for the event loop."""

    def __init__(self, context_size: int | None = None, *, trust_remote_code: bool = False) -> None:
        """`context_size`: an upper bound of the context that is honoured."""
        self._context_size = context_size
        self._trust_remote_code = trust_remote_code

    def models(self) -> tuple[LocalModel, ...]:
        """Those that can be served, by name: in the hub's cache, and in mlxd's own folder."""
        from mlx_backend.local_models import hub_cache, local_models

        return local_models(
            hub_cache(),
            paths.models_folder(),
            self._context_size,
            trust_remote_code=self._trust_remote_code,
        )

    def model(self, path_or_repo: str) -> LocalModel:
        """One by its folder or repository. Raises BackendError for one that is not here."""
        from mlx_backend.local_models import described, hub_cache

        return described(path_or_repo, hub_cache(), self._context_size)


def default_model(shelf: Shelf, configured: str | None, name: str | None) -> LocalModel:
    """The model that is served unless a request says otherwise, under the `name` that it is given.

    Raises ConfigurationError if none is configured, or the one that is is not here.
    """
    try:
        model = shelf.model(configured or _demo_model())
    except BackendError as error:
        raise ConfigurationError(str(error)) from error
    return model if name is None else replace(model, name=name)


def catalog_on_disk(
    configured: str | None,
    name: str | None,
    aliases: Mapping[str, str],
    context_size: int | None = None,
) -> Catalog:
    """The models of this machine as a daemon with these settings has them; without a default where
    there is none."""
    shelf = Shelf(context_size)
    try:
        default = default_model(shelf, configured, name)
    except ConfigurationError:
        default = LocalModel("")
    found = Catalog(default, aliases=aliases)
    found.see(shelf.models())
    return found


def chosen_on_disk(catalog: Catalog, named: str) -> LocalModel:
    """A model by one of its names, or by a folder that is nowhere else. Raises CommandFailed."""
    if Path(named).expanduser().is_dir():
        return Shelf().model(named)
    try:
        found = catalog.resolve(named)
    except NotFound as error:
        raise CommandFailed(error.message) from error
    if not found.key:
        raise CommandFailed("There is no default model: `mlxd use MODEL` makes one it.")
    return found


def load_model(
    model: LocalModel, options: LoadOptions, journals: Journals | None = None
) -> LoadedModel:
    """On the thread that is to own it, from where its files are by now. `journals` keep what its
    prompts have to be like in the next run. Raises BackendError."""
    from mlx_backend.blas import prefer_openblas

    prefer_openblas()
    from mlx_backend.loading import load

    return load(
        Shelf(trust_remote_code=options.trust_remote_code).model(model.key).folder,
        name=model.name,
        kv_bits=options.kv_bits,
        context_size=options.context_size,
        pool_bytes=options.pool_bytes,
        wire_weights=options.wire_weights,
        trust_remote_code=options.trust_remote_code,
        journals=journals,
    )


def journals_beside(folder: Path, most_bytes: int | None, write_behind: WriteBehind) -> Journals:
    """The journals beside the files of a disk cache of `most_bytes`, of which they take a small
    part more."""
    if most_bytes is None:
        return Journals(folder, write_behind)
    return Journals(folder, write_behind, min(KEPT_BYTES, most_bytes // _JOURNAL_SHARE))


def prompt_encoder(model: str) -> PromptEncoder:
    """What encodes a model's prompts, without its weights. Raises CommandFailed."""
    from mlx_backend.blas import prefer_openblas

    prefer_openblas()
    from mlx_backend.loading import load_prompts

    try:
        return load_prompts(model)
    except BackendError as error:
        raise CommandFailed(str(error)) from error


def _demo_model() -> str:
    """The folder of what `mlxd demo` fetched."""
    folder = paths.demo_model_folder()
    if not folder.is_dir():
        raise ConfigurationError(
            "No model is configured. Name one with --model FOLDER_OR_REPO, or fetch one with "
            "`mlxd pull REPO` and choose it with `mlxd use REPO`, or run `mlxd demo` once: it "
            "fetches a small one that is served from then on."
        )
    return str(folder)


def fetch_demo_model(progress: Progress | None = None) -> Path:
    """The small real model's folder, downloaded first if it is not there. Raises CommandFailed."""
    from mlx_backend.smollm2 import fetch

    try:
        return fetch(paths.cache_folder(), progress)
    except BackendError as error:
        raise CommandFailed(str(error)) from error


def pull(repo: str, progress: Progress) -> LocalModel:
    """Download what is needed of a hub repository, or what is left of it. Raises BackendError."""
    from mlx_backend.downloads import fetch_repository
    from mlx_backend.local_models import hub_cache

    fetch_repository(repo, hub_cache(), progress)
    return Shelf().model(repo)


def remove(model: LocalModel) -> None:
    """Delete it from the disk. Raises BackendError for what is not in mlxd's or the hub's care."""
    from mlx_backend.local_models import hub_cache
    from mlx_backend.local_models import remove as delete

    delete(model, hub_cache(), paths.models_folder())


def memory_for_models() -> int:
    """Bytes that weights and trees together may take on this machine.

    The first of a daemon's questions to mlx, so the BLAS has to be chosen here already.
    """
    from mlx_backend.blas import prefer_openblas

    prefer_openblas()
    from mlx_backend.memory import residency_bytes, this_machine

    return residency_bytes(this_machine())


def default_memory_bytes(info: ModelInfo) -> int:
    """What rows and prefix cache may take where no setting says it."""
    from mlx_backend.memory import default_budget_bytes, this_machine

    return default_budget_bytes(this_machine(), info.weight_bytes)


def default_cache_bytes(info: ModelInfo) -> int:
    """What the prefix cache may take where no setting says it."""
    from mlx_backend.memory import default_cache_bytes as default_bytes
    from mlx_backend.memory import this_machine

    row_bytes = info.span_token_bytes * info.context_size + info.checkpoint_bytes
    return default_bytes(this_machine(), info.weight_bytes, row_bytes)
