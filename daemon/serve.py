"""The composition of a daemon: settings in, exit code out. Settings stop here.

The port is bound before anything is loaded, so that a second daemon says so at once, and requests
that come while the model loads wait for it. What is done with models is in `models`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.authority import Authority
from daemon.api.endpoint import Door
from daemon.api.security import Access
from daemon.api.sse import KeepAlive
from daemon.api_key import find_key
from daemon.budget import Budget
from daemon.catalog import Catalog
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_tier import DiskOptions
from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.errors import ConfigurationError
from daemon.listening import listening, own_names
from daemon.machine import Edges, Machine
from daemon.models import (
    LoadOptions,
    Shelf,
    default_cache_bytes,
    default_memory_bytes,
    default_model,
    journals_beside,
    load_model,
    memory_for_models,
)
from daemon.open_files import most_connections, raise_limit
from daemon.own_token import own_token
from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.policies import OffsetsFunction
from daemon.residents import ResidencyLimits
from daemon.server import Server
from daemon.settings import Settings
from daemon.sources import ModelSource
from daemon.starts import Starts, crash_words
from mlx_backend.errors import BackendError, ModelUnsupported
from mlx_backend.interface import LoadedModel
from mlx_backend.journal import Journals
from mlx_backend.messages import LocalModel, ModelInfo

log = logging.getLogger(__name__)

EXIT_OK = 0

Load = Callable[[], LoadedModel]


@dataclass(frozen=True, slots=True)
class _Models:
    """What can be served: the `default` from the start on, others from the `shelf`.

    `memory_bytes` for the weights and trees of all; None: no limit.
    """

    default: LocalModel
    load: Callable[[LocalModel, Journals | None], LoadedModel]
    shelf: Shelf | None = None
    memory_bytes: int | None = None


def serve(
    settings: Settings,
    *,
    load: Load | None = None,
    keep_alive: KeepAlive = KeepAlive(),  # noqa: B008  (frozen)
    token_file: Path | None = None,
    disk_folder: Path | None = None,
    starts: Starts | None = None,
    edges: Edges = Edges(),  # noqa: B008  (frozen)
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. `load` stands in for loading with mlx.

    `token_file` keeps the daemon's own token; without one no client has it. `disk_folder` is where
    what was read outlives this run; without one it does not. `starts` remembers how the last starts
    went: after too many crashes the model is left out. `edges` are the machine's.

    Raises ConfigurationError for a port, a model or a policy that cannot work.
    """
    crashes = starts.begin() if starts is not None else 0
    policy = named_policy(settings.prefix_checkpoint_policy)
    access = _access(settings)
    unix_socket = Path(settings.unix_socket) if settings.unix_socket else None
    with listening(settings.port, settings.host, unix_socket) as sockets:
        models = _models_on_disk(settings) if load is None else _one_model(settings, load)
        authority = _authority(token_file) if token_file is not None else None
        if starts is not None:
            starts.forget_refusal()
        ended = starts.ended if starts is not None else _nothing
        held = crash_words(crashes)
        guards = _Guards(access, authority)
        disk = _disk_options(settings, disk_folder, models.memory_bytes)
        run = _Run(settings, models, keep_alive, guards, policy, disk, Machine(edges), ended, held)
        asyncio.run(run.until_stopped(sockets))
    ended()
    if run.left_a_thread:
        _leave_at_once()
    if run.refusal is not None:
        raise ConfigurationError(str(run.refusal)) from run.refusal
    return EXIT_OK


def _nothing() -> None:
    """Nobody remembers how this start went."""


def _leave_at_once() -> NoReturn:
    """End the process under a thread that is inside mlx: the interpreter's own end, which takes
    modules away from such a thread, would crash."""
    logging.shutdown()
    os._exit(EXIT_OK)


@dataclass(frozen=True, slots=True)
class _Guards:
    """Who may ask at all, and who may read prompts and destroy state."""

    access: Access
    authority: Authority | None


class _Run:
    """One life of the daemon. `refusal` is set if its model turns out not to be servable,
    `left_a_thread` if it was stopped while a model was being loaded or a chunk took too long."""

    def __init__(
        self,
        settings: Settings,
        models: _Models,
        keep_alive: KeepAlive,
        guards: _Guards,
        policy: OffsetsFunction | None,
        disk: DiskOptions | None,
        machine: Machine,
        ended: Callable[[], None],
        held: str = "",
    ) -> None:
        self._settings = settings
        self._models = models
        self._keep_alive = keep_alive
        self._guards = guards
        self._policy = policy
        self._disk = disk
        self._machine = machine
        self._ended = ended
        self._held = held
        self._journals: Journals | None = None
        self._is_loading = False
        self._has_loaded = False
        self.refusal: BackendError | None = None
        self.left_a_thread = False

    async def until_stopped(self, sockets: list[socket.socket]) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        engine = self._engine = Engine(
            self._source(self._models.default),
            make_cache=self._make_cache,
            make_budget=self._make_budget,
            options=self._engine_options(),
            on_busy=self._machine.busy,
        )
        if self._disk is not None:
            folder, most_bytes = self._disk.folder, self._disk.limits.max_bytes
            self._journals = journals_beside(folder, most_bytes, engine.write_behind)
        door = Door(
            engine,
            settings.max_body_bytes,
            self._keep_alive,
            cuts_telemetry=settings.vendor_telemetry == "cut",
            catalog=self._catalog(),
        )
        identity = Identity.of_new_run(uuid4().hex, settings.port, settings.digest)
        app = build_app(
            door,
            identity,
            authority=self._guards.authority,
            access=self._guards.access,
            stop=self._stop,
            machine=self._machine.status,
        )
        grace_seconds = settings.shutdown_grace_seconds
        most = most_connections(raise_limit())
        self._server = Server(
            app, self._close, grace_seconds, most_connections=most, hurry=self._hurry
        )
        if self._held:
            log.error("the model is %s", self._held)
        with self._server.capture_signals(), self._machine.at_work(engine):
            engine.start()
            log.info("listening on http://127.0.0.1:%d", settings.port)
            if settings.is_remote:
                log.info("other machines may ask, too, on %s", settings.host)
            await self._server.serve(sockets)
        if self._journals is not None and not self.left_a_thread:
            self._journals.write_rest()  # of answers that were cut short by the end

    def _stop(self) -> None:
        """Asked to, by who has the token."""
        self._server.stop()

    def _hurry(self) -> None:
        """Told to stop a second time: nobody wants to wait for what is left."""
        log.warning("told twice to stop: at once, then")
        self._machine.end()
        self._ended()
        _leave_at_once()

    async def _close(self, grace_seconds: float) -> None:
        """A load cannot be interrupted, and takes long; nobody's answer depends on it. Nor can a
        chunk, whose end is waited for a moment."""
        if self._is_loading:
            log.info("stopped while the model was loading")
            self.left_a_thread = True
        elif not await self._engine.close(grace_seconds):
            log.info("stopped in the middle of a chunk")
            self.left_a_thread = True

    def _catalog(self) -> Catalog:
        models = self._models
        return Catalog(models.default, self._source, models.shelf, self._settings.alias_models)

    def _source(self, model: LocalModel) -> ModelSource:
        is_first = model.key == self._models.default.key
        load = self._load_or_stop if is_first else partial(self._load, model)
        return ModelSource(model.key, load, model.name, model.weight_bytes)

    def _engine_options(self) -> EngineOptions:
        settings = self._settings
        return EngineOptions(
            chunk_tokens=settings.chunk_tokens,
            max_concurrent=settings.max_concurrent_requests,
            max_queued=settings.max_queued_requests,
            prompt_end=settings.prompt_end,
            checkpoint_interval=settings.prefix_checkpoint_interval,
            checkpoint_offsets=self._policy,
            max_sessions=settings.max_sessions,
            session_idle_seconds=settings.session_idle_seconds,
            residency=ResidencyLimits(
                settings.max_loaded_models,
                settings.keep_alive_seconds,
                self._models.memory_bytes,
                self._held,
            ),
            disk=self._disk,
        )

    def _load_or_stop(self) -> LoadedModel:
        """On the engine's thread. A default model that was never servable ends the daemon; a later
        failure does not: the engine tries again."""
        try:
            model = self._load_within(self._models.memory_bytes, self._models.default)
        except BackendError as error:
            if not self._has_loaded and not self._held:
                self.refusal = error
                self._loop.call_soon_threadsafe(self._server.stop)
            raise
        self._has_loaded = True
        return model

    def _load_within(self, memory_bytes: int | None, model: LocalModel) -> LoadedModel:
        """Of other models the engine sees to it, which knows what else is loaded."""
        if memory_bytes is not None and model.weight_bytes > memory_bytes:
            raise ModelUnsupported(
                f"{model.name} needs {model.weight_bytes:,} bytes of memory for its weights; "
                f"there are {memory_bytes:,}."
            )
        return self._load(model)

    def _load(self, model: LocalModel) -> LoadedModel:
        self._is_loading = True
        try:
            loaded = self._models.load(model, self._journals)
        finally:
            self._is_loading = False
        info = loaded.info
        log.info("%s is ready, with a context of %d tokens", info.name, info.context_size)
        return loaded

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        """On the engine's thread, once the model is there."""
        limit = self._settings.prefix_cache_bytes
        return PrefixCache(
            kind=info.cache_kind,
            max_entries=self._settings.prefix_cache_entries,
            max_bytes=default_cache_bytes(info) if limit is None else limit,
        )

    def _make_budget(self, info: ModelInfo) -> Budget:
        """On the engine's thread: what rows and prefix cache may take together."""
        limit, chunk_tokens = self._settings.memory_bytes, self._settings.chunk_tokens
        if limit is None:
            return Budget.of_model(info, default_memory_bytes(info), chunk_tokens)
        return replace(Budget.of_model(info, limit, chunk_tokens), is_fixed=True)


def _disk_options(
    settings: Settings, folder: Path | None, memory_bytes: int | None
) -> DiskOptions | None:
    """None keeps what was read in memory only."""
    if folder is None or settings.disk_cache_bytes == 0:
        return None
    limits = DiskLimits(
        settings.disk_cache_bytes,
        settings.disk_cache_free_bytes,
        settings.disk_cache_write_bytes_per_day,
    ).within(memory_bytes)
    idle_seconds, save_seconds = settings.disk_cache_idle_seconds, settings.shutdown_save_seconds
    return DiskOptions(folder, limits, idle_seconds, save_seconds)


def _access(settings: Settings) -> Access:
    """Raises ConfigurationError if the API key is not where it should be."""
    return Access(
        find_key(settings.api_key_file, settings.api_key_keychain),
        settings.named_origins,
        own_names() if settings.is_remote else None,
    )


def _authority(file: Path) -> Authority | None:
    """Who may do what only this account may; nobody, where the token cannot be kept."""
    try:
        return Authority(own_token(file), str(file))
    except OSError as error:
        log.warning("no token of its own, so nobody may read prompts or clear the cache: %s", error)
        return None


def named_policy(name: str | None) -> OffsetsFunction | None:
    """The function that `package.module:function` names. Raises ConfigurationError."""
    if name is None:
        return None
    module, _, path = name.partition(":")
    try:
        function = attrgetter(path)(importlib.import_module(module))
        signature(function).bind(0, None, True, None)
    except Exception as error:  # whatever a module of the user's raises as it is imported
        raise ConfigurationError(
            f"--prefix-checkpoint-policy {name} cannot be used: {type(error).__name__}: {error}. "
            "It has to name an importable function (start, prompt, opening, marks)."
        ) from error
    chosen: OffsetsFunction = function
    return chosen


def _one_model(settings: Settings, load: Load) -> _Models:
    return _Models(LocalModel(settings.name or ""), lambda model, journals: load())


def _models_on_disk(settings: Settings) -> _Models:
    """Raises ConfigurationError if no model is configured, or the one that is is not there."""
    trust_remote_code = settings.trust_remote_code == "yes"
    shelf = Shelf(settings.context_size, trust_remote_code=trust_remote_code)
    default = default_model(shelf, settings.model, settings.name)
    options = LoadOptions(
        kv_bits=settings.kv_bits,
        context_size=settings.context_size,
        pool_bytes=settings.pool_bytes,
        wire_weights=settings.wire_weights == "yes",
        trust_remote_code=trust_remote_code,
    )
    return _Models(
        default,
        lambda model, journals: load_model(model, options, journals),
        shelf,
        memory_for_models(),
    )
