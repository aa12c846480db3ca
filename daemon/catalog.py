"""Which models there are, by which ids, and which one a request means.

Lives on the event loop and reads no disk itself: what is there comes from a `Shelf`, asked beside
the loop. A request names a model by alias, by name, by repository or by folder; the ids that
agents have built in, and no id at all, mean the default. Nothing is ever downloaded for an id.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Protocol

from daemon.errors import NotFound
from daemon.sources import ModelSource
from daemon.status import ListedModel, ModelStatus
from mlx_backend.messages import LocalModel

DEFAULT_NAMES = frozenset({"", "default"})
VENDOR_NAME = re.compile(
    r"(anthropic/|openai/)?(claude|gpt(?!-oss)|chatgpt|codex|o[1-9])(-.+)?", re.IGNORECASE
)
"""Ids that agents have built in, for helper calls too: the default model answers for them."""

SHOWN_IDS = 20
"""How many known ids a refusal names."""


class Shelf(Protocol):
    """The models on the disk. Its methods take their time, and may be called on any thread."""

    def models(self) -> Sequence[LocalModel]: ...

    def model(self, path_or_repo: str) -> LocalModel:
        """Raises BackendError for one that is not there."""


class Catalog:
    """`default` is the model of requests that name none.

    `source_of` says how a model is loaded; None: it is the one that the engine starts with.
    Statuses are the engine's, which knows what a loaded model calls itself.
    """

    def __init__(
        self,
        default: LocalModel,
        source_of: Callable[[LocalModel], ModelSource | None] = lambda model: None,
        shelf: Shelf | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.default = default
        self._source_of = source_of
        self._shelf = shelf
        self._aliases = dict(aliases or {})
        self._known = {default.key: default}
        self._shelved: tuple[LocalModel, ...] = ()

    async def refresh(self) -> None:
        """See what is on the disk by now."""
        if self._shelf is not None:
            self.see(await asyncio.to_thread(self._shelf.models))

    def see(self, models: Iterable[LocalModel]) -> None:
        """These are on the disk, beside those that were asked for before."""
        self._shelved = tuple(models)

    async def find(self, asked: str | None, statuses: Sequence[ModelStatus] = ()) -> LocalModel:
        """The model of an id. Looks again on the disk before it raises NotFound, and before a model
        is loaded: it may be gone by now."""
        with suppress(NotFound):
            found = self.resolve(asked, statuses)
            ready = {status.key for status in statuses if status.state == "ready"}
            if found.key in ready | {self.default.key}:
                return found
        await self.refresh()
        return self.resolve(asked, statuses)

    async def adopt(self, asked: str, statuses: Sequence[ModelStatus] = ()) -> LocalModel:
        """The same for whoever owns this account: also a folder that is on no shelf.

        Raises NotFound, or the BackendError of a folder that holds no model.
        """
        try:
            return await self.find(asked, statuses)
        except NotFound:
            if self._shelf is None or not asked.startswith(("/", "~")):
                raise
        model = await asyncio.to_thread(self._shelf.model, asked)
        return self._known.setdefault(model.key, model)

    def use(self, model: LocalModel) -> None:
        """Make it the default, from the next request on."""
        self._known.setdefault(model.key, model)
        self.default = model

    def source(self, model: LocalModel) -> ModelSource | None:
        return self._source_of(model)

    def resolve(self, asked: str | None, statuses: Sequence[ModelStatus] = ()) -> LocalModel:
        """The model of an id, as far as the disk is known. Raises NotFound with the known ids."""
        if asked is None or asked in DEFAULT_NAMES:
            return self.default
        models = self._models(statuses)
        target = self._alias(asked)
        found = self._by_id(target or asked, models)
        if found is None and target is None and VENDOR_NAME.fullmatch(asked):
            return self.default
        if found is None and target in DEFAULT_NAMES:
            return self.default
        if found is None:
            raise _not_found(asked, target, models.values())
        return found

    def listed(self, statuses: Sequence[ModelStatus] = ()) -> tuple[ListedModel, ...]:
        """All of them as they are told, the default first, each under an id of its own."""
        shown = [self.described(model, statuses) for model in self._all().values()]
        named = [model for model in shown if model.name]
        names = [model.name for model in named]
        return tuple(
            model
            if names.index(model.name) == index
            else replace(model, id=model.repo or model.folder)
            for index, model in enumerate(named)
        )

    def described(self, model: LocalModel, statuses: Sequence[ModelStatus] = ()) -> ListedModel:
        """One of them, as it is told under its name."""
        models = self._models(statuses)
        shown = models[model.key]
        states = [each.state for each in statuses if each.key == model.key]
        targets = {alias: self._by_id(name, models) for alias, name in self._aliases.items()}
        return ListedModel(
            id=shown.name,
            name=shown.name,
            repo=shown.repo,
            folder=shown.folder,
            weight_bytes=shown.weight_bytes,
            context_size=shown.context_size,
            state=states[0] if states else "",
            is_default=model.key == self.default.key,
            aliases=tuple(alias for alias, target in targets.items() if target is model),
        )

    def _all(self) -> dict[str, LocalModel]:
        """By key, the default first, each once."""
        found: dict[str, LocalModel] = {}
        for model in (self.default, *self._known.values(), *self._shelved):
            found.setdefault(model.key, model)
        return found

    def _models(self, statuses: Sequence[ModelStatus]) -> dict[str, LocalModel]:
        """The same, with what the engine knows of those that it loaded."""
        own = {status.key: status for status in statuses}
        return {key: _as_loaded(model, own.get(key)) for key, model in self._all().items()}

    def _by_id(self, asked: str, models: Mapping[str, LocalModel]) -> LocalModel | None:
        """By one of its ids; a repository's owner may stand before its name."""
        exact = (key for key, model in models.items() if asked in _ids(model))
        name = PurePath(asked).name
        owned = (key for key, model in models.items() if name and model.name == name)
        found = next(exact, next(owned, None))
        return None if found is None else self._all()[found]

    def _alias(self, asked: str) -> str | None:
        """What stands for an id in the settings: exactly, or by a pattern such as `claude-*`."""
        if asked in self._aliases:
            return self._aliases[asked]
        patterns = (name for name in self._aliases if "*" in name and fnmatchcase(asked, name))
        return next((self._aliases[name] for name in patterns), None)


def _ids(model: LocalModel) -> frozenset[str]:
    ids = {model.name, model.repo, PurePath(model.repo).name, model.folder}
    if not model.repo:
        ids.add(PurePath(model.folder).name)
    return frozenset(ids - {""})


def _as_loaded(model: LocalModel, status: ModelStatus | None) -> LocalModel:
    """With what is only known once it was loaded."""
    if status is None or not status.context_size:
        return model
    return replace(
        model,
        name=model.name or status.name,
        folder=model.folder or status.path,
        weight_bytes=status.weight_bytes,
        context_size=status.context_size,
    )


def _not_found(asked: str, target: str | None, models: Iterable[LocalModel]) -> NotFound:
    names = [f"`{name}`" for name in dict.fromkeys(model.name for model in models) if name]
    known = ", ".join(names[:SHOWN_IDS]) + (" …" if len(names) > SHOWN_IDS else "")
    meant = "" if target is None else f", for which the settings say `{target[:200]}`,"
    return NotFound(
        f"The model `{asked[:200]}`{meant} is not here. Known: {known or 'none'}. "
        "`mlxd pull` fetches one.",
        field="model",
        code="model_not_found",
    )
