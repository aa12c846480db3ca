"""Which models are on this machine's disk: looked at, not loaded, and quickly.

A hub repository lies in the hub's cache as `models--OWNER--NAME`, its present files as links in a
snapshot; other models are folders of mlxd's own. Listed is what mlx-lm can run and what is whole
as far as names tell; loading looks closer. No mlx here, and nothing of mlx-lm is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mlx_backend.context_size import context_size as served_context
from mlx_backend.errors import BackendError, ModelDamaged, ModelNotFound
from mlx_backend.messages import LocalModel
from mlx_backend.model_files import brings_code, find_folder, read_config, read_json

_REPOSITORY = "models--"
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\.safetensors")


def hub_cache() -> Path:
    """Where the hub's tools keep what they downloaded."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def local_models(
    hub: Path,
    own_folder: Path,
    context_size: int | None = None,
    *,
    trust_remote_code: bool = False,
) -> tuple[LocalModel, ...]:
    """Every model that can be served, by name; `context_size` is an upper bound. One that brings
    code of its own can be served only if that is trusted."""
    found = [
        model
        for model in (*_of_hub(hub, context_size), *_of_folder(own_folder, context_size))
        if trust_remote_code or not brings_code(_config(model))
    ]
    return tuple(sorted(found, key=lambda model: (model.name.lower(), model.repo)))


def described(path_or_repo: str, hub: Path, context_size: int | None = None) -> LocalModel:
    """One model, by folder or repository. Raises ModelNotFound or ModelDamaged."""
    is_folder = Path(path_or_repo).expanduser().is_dir()
    place = None if is_folder else _snapshot(_place(hub, path_or_repo))
    folder = place or find_folder(path_or_repo)
    if is_folder:
        return _described(folder, folder.name, "", context_size)
    return _described(folder, path_or_repo.split("/")[-1], path_or_repo, context_size)


def remove(model: LocalModel, hub: Path, own_folder: Path) -> None:
    """Delete a model's files. Raises ModelNotFound unless they are in one of the two places."""
    place = _place(hub, model.repo) if model.repo else None
    folder = place or Path(model.folder)
    if place is None and folder.resolve().parent != own_folder.resolve():
        raise ModelNotFound(
            f"{model.folder} is a folder of yours, which mlxd does not delete; remove it yourself."
        )
    try:
        shutil.rmtree(folder)
        if place is not None:
            shutil.rmtree(hub / ".locks" / place.name, ignore_errors=True)
    except OSError as error:
        raise ModelDamaged(f"{folder} cannot be deleted: {error.strerror or error}") from error


def _place(hub: Path, repo: str) -> Path:
    return hub / (_REPOSITORY + repo.replace("/", "--"))


def _of_hub(hub: Path, context_size: int | None) -> Iterator[LocalModel]:
    for place in _folders(hub, f"{_REPOSITORY}*--*"):
        repo = place.name.removeprefix(_REPOSITORY).replace("--", "/", 1)
        snapshot = _snapshot(place)
        if snapshot is not None:
            yield from _if_servable(snapshot, repo.split("/")[1], repo, context_size)


def _of_folder(folder: Path, context_size: int | None) -> Iterator[LocalModel]:
    for each in _folders(folder, "[!.]*"):
        yield from _if_servable(each.resolve(), each.name, "", context_size)


def _folders(parent: Path, pattern: str) -> list[Path]:
    try:
        return sorted(each for each in parent.glob(pattern) if each.is_dir())
    except OSError:
        return []


def _snapshot(place: Path) -> Path | None:
    """The files of a repository's main revision."""
    try:
        revision = (place / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = place / "snapshots" / revision
    return snapshot if revision and snapshot.is_dir() else None


def _if_servable(
    folder: Path, name: str, repo: str, context_size: int | None
) -> Iterator[LocalModel]:
    try:
        model = _described(folder, name, repo, context_size)
    except (BackendError, OSError):
        return
    if model.weight_bytes and _is_runnable(_config(model)):
        yield model


def _described(folder: Path, name: str, repo: str, context_size: int | None) -> LocalModel:
    config = read_config(folder)
    return LocalModel(
        name, str(folder), repo, _weight_bytes(folder), _context_size(folder, config, context_size)
    )


def _weight_bytes(folder: Path) -> int:
    """What the weights will take, as their files tell; 0 where one of them is missing."""
    files = list(folder.glob("model*.safetensors"))
    shards = [matched for file in files if (matched := _SHARD.fullmatch(file.name))]
    if shards and len(shards) != int(shards[0][2]):
        return 0
    try:
        return sum(file.stat().st_size for file in files)
    except FileNotFoundError:  # a link whose file was deleted
        return 0


def _context_size(folder: Path, config: Mapping[str, Any], asked: int | None) -> int:
    """As loading finds it. The tokenizer's file is large, and only seldom says more."""
    size, unknown = served_context(config, None)
    if unknown:
        tokenizer = read_json(folder / "tokenizer_config.json", optional=True)
        size, _ = served_context(config, tokenizer.get("model_max_length"))
    return size if asked is None else min(size, asked)


def _config(model: LocalModel) -> dict[str, Any]:
    return read_json(Path(model.folder) / "config.json", optional=True)


def _is_runnable(config: Mapping[str, Any]) -> bool:
    kind = config.get("model_type")
    return brings_code(config) or not _runnable_kinds() or kind in _runnable_kinds()


@cache
def _runnable_kinds() -> frozenset[str]:
    """The model types that mlx-lm has code for, and those that it takes for another one of them.

    Read from its files, because importing it takes seconds; empty if they are not as expected.
    """
    found = importlib.util.find_spec("mlx_lm")
    places = list(found.submodule_search_locations or ()) if found else []
    if not places:
        return frozenset()
    package = Path(places[0])
    own = {file.stem for file in (package / "models").glob("*.py")}
    return frozenset(own | _remapped(package / "utils.py")) if own else frozenset()


def _remapped(utils: Path) -> set[str]:
    try:
        tree = ast.parse(utils.read_text(encoding="utf-8"))
        [table] = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL_REMAPPING"
        ]
        return set(ast.literal_eval(table))
    except (OSError, ValueError, SyntaxError):
        return set()
