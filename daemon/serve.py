"""The composition of a daemon: settings in, exit code out. Settings stop here.

The port is bound before anything is loaded, so that a second daemon says so at once, and requests
are answered (503) while the model loads. The only module that imports the backend's
implementation, inside functions: it costs seconds, and the rest of the daemon runs without it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from collections.abc import Callable
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from daemon import paths
from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.authority import Authority
from daemon.api.endpoint import Door
from daemon.api.sse import KeepAlive
from daemon.budget import Budget
from daemon.engine import Engine
from daemon.errors import CommandFailed, ConfigurationError
from daemon.listening import bind_loopback
from daemon.own_token import own_token
from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.policies import OffsetsFunction
from daemon.residents import ResidencyLimits
from daemon.server import Server
from daemon.settings import Settings
from daemon.starts import Starts, crash_words
from mlx_backend.errors import BackendError
from mlx_backend.interface import LoadedModel, PromptEncoder
from mlx_backend.messages import ModelInfo

log = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""How long running requests may go on after the daemon was told to stop."""

EXIT_OK = 0

Load = Callable[[], LoadedModel]


def serve(
    settings: Settings,
    *,
    load: Load | None = None,
    keep_alive: KeepAlive = KeepAlive(),  # noqa: B008  (frozen)
    grace_seconds: float = GRACE_SECONDS,
    token_file: Path | None = None,
    starts: Starts | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. `load` stands in for loading with mlx.

    `token_file` keeps the daemon's own token; without one no client has it. `starts` remembers how
    the last starts went: after too many crashes the model is left out.

    Raises ConfigurationError for a port, a model or a policy that cannot work.
    """
    crashes = starts.begin() if starts is not None else 0
    policy = named_policy(settings.prefix_checkpoint_policy)
    chosen_load = load or model_loader(settings)
    sockets = bind_loopback(settings.port)
    authority = _authority(token_file) if token_file is not None else None
    if starts is not None:
        starts.forget_refusal()
    held = crash_words(crashes)
    run = _Run(settings, chosen_load, keep_alive, grace_seconds, authority, policy, held)
    asyncio.run(run.until_stopped(sockets))
    if starts is not None:
        starts.ended()
    if run.left_a_thread:
        _leave_at_once()
    if run.refusal is not None:
        raise ConfigurationError(str(run.refusal)) from run.refusal
    return EXIT_OK


def _leave_at_once() -> NoReturn:
    """End the process under a thread that is inside mlx: the interpreter's own end, which takes
    modules away from such a thread, would crash."""
    logging.shutdown()
    os._exit(EXIT_OK)


class _Run:
    """One life of the daemon. `refusal` is set if its model turns out not to be servable,
    `left_a_thread` if it was stopped while a model was being loaded or a chunk took too long."""

    def __init__(
        self,
        settings: Settings,
        load: Load,
        keep_alive: KeepAlive,
        grace_seconds: float,
        authority: Authority | None,
        policy: OffsetsFunction | None,
        held: str = "",
    ) -> None:
        self._settings = settings
        self._load = load
        self._keep_alive = keep_alive
        self._grace_seconds = grace_seconds
        self._authority = authority
        self._policy = policy
        self._held = held
        self._is_loading = False
        self._has_loaded = False
        self.refusal: BackendError | None = None
        self.left_a_thread = False

    async def until_stopped(self, sockets: list[socket.socket]) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        engine = self._engine = Engine(
            self._load_or_stop,
            make_cache=self._make_cache,
            make_budget=self._make_budget,
            chunk_tokens=settings.chunk_tokens,
            max_concurrent=settings.max_concurrent_requests,
            max_queued=settings.max_queued_requests,
            prompt_end=settings.prompt_end,
            checkpoint_interval=settings.prefix_checkpoint_interval,
            checkpoint_offsets=self._policy,
            max_sessions=settings.max_sessions,
            session_idle_seconds=settings.session_idle_seconds,
            residency=ResidencyLimits(held=self._held),
        )
        door = Door(
            engine,
            settings.max_body_bytes,
            self._keep_alive,
            cuts_telemetry=settings.vendor_telemetry == "cut",
        )
        identity = Identity.of_new_run(uuid4().hex, settings.port, settings.digest)
        app = build_app(door, identity, authority=self._authority, stop=self._stop)
        self._server = Server(app, self._close, self._grace_seconds)
        if self._held:
            log.error("the model is %s", self._held)
        engine.start()
        log.info("listening on http://127.0.0.1:%d", settings.port)
        await self._server.serve(sockets)

    def _stop(self) -> None:
        """Asked to, by who has the token."""
        self._server.stop()

    async def _close(self, grace_seconds: float) -> None:
        """A load cannot be interrupted, and takes long; nobody's answer depends on it. Nor can a
        chunk, whose end is waited for a moment."""
        if self._is_loading:
            log.info("stopped while the model was loading")
            self.left_a_thread = True
        elif not await self._engine.close(grace_seconds):
            log.info("stopped in the middle of a chunk")
            self.left_a_thread = True

    def _load_or_stop(self) -> LoadedModel:
        """On the engine's thread. A model that was never servable ends the daemon; a later
        failure does not: the engine tries again."""
        try:
            model = self._loaded()
        except BackendError as error:
            if not self._has_loaded:
                self.refusal = error
                self._loop.call_soon_threadsafe(self._server.stop)
            raise
        self._has_loaded = True
        log.info(
            "%s is ready, with a context of %d tokens", model.info.name, model.info.context_size
        )
        return model

    def _loaded(self) -> LoadedModel:
        self._is_loading = True
        try:
            return self._load()
        finally:
            self._is_loading = False

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        """On the engine's thread, once the model is there."""
        limit = self._settings.prefix_cache_bytes
        return PrefixCache(
            kind=info.cache_kind,
            max_entries=self._settings.prefix_cache_entries,
            max_bytes=_default_cache_bytes(info) if limit is None else limit,
        )

    def _make_budget(self, info: ModelInfo) -> Budget:
        """On the engine's thread: what rows and prefix cache may take together."""
        limit = self._settings.memory_bytes
        max_bytes = _default_memory_bytes(info) if limit is None else limit
        return Budget.of_model(info, max_bytes, self._settings.chunk_tokens)


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


def _default_memory_bytes(info: ModelInfo) -> int:
    from mlx_backend.memory import default_budget_bytes, this_machine

    return default_budget_bytes(this_machine(), info.weight_bytes)


def _default_cache_bytes(info: ModelInfo) -> int:
    from mlx_backend.memory import default_cache_bytes, this_machine

    row_bytes = info.span_token_bytes * info.context_size + info.checkpoint_bytes
    return default_cache_bytes(this_machine(), info.weight_bytes, row_bytes)


def model_loader(settings: Settings) -> Load:
    """What loads the configured model, once it is called on the engine's thread.

    Raises ConfigurationError if no model is configured and the demo's is not there.
    """
    model = settings.model or _demo_model()

    def load_model() -> LoadedModel:
        from mlx_backend.blas import prefer_openblas

        prefer_openblas()
        from mlx_backend.loading import load

        return load(
            model,
            name=settings.name,
            kv_bits=settings.kv_bits,
            context_size=settings.context_size,
            pool_bytes=settings.pool_bytes,
            wire_weights=settings.wire_weights == "yes",
        )

    return load_model


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
    folder = paths.demo_model_folder()
    if not folder.is_dir():
        raise ConfigurationError(
            "No model is configured. Name one with --model FOLDER_OR_REPO, or run `mlxd demo` "
            "once: it fetches a small one that is served from then on."
        )
    return str(folder)


def fetch_demo_model(progress: Callable[[int, int | None], None] | None = None) -> Path:
    """The small real model's folder, downloaded first if it is not there. Raises CommandFailed."""
    from mlx_backend.smollm2 import fetch

    try:
        return fetch(paths.cache_folder(), progress)
    except BackendError as error:
        raise CommandFailed(str(error)) from error
