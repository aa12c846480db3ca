"""What the daemon says of itself: its model, its health, its status. Never waits for a chunk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, time
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from daemon import __version__
from daemon.api.openai_fields import dump
from daemon.api.responses import error_response, json_response, unavailable_fields
from daemon.api.rules import answering_name
from daemon.engine import Engine
from daemon.errors import ModelUnavailable
from daemon.status import DaemonStatus
from mlx_backend.messages import ModelInfo

STATUS_JSON = TypeAdapter(DaemonStatus)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run of the daemon this is, with which settings (a digest of them).

    `started` is a monotonic time, `created` a date.
    """

    instance: str
    port: int
    started: float
    created: int
    settings: str = ""

    @classmethod
    def of_new_run(cls, instance: str, port: int, settings: str = "") -> Identity:
        return cls(instance, port, monotonic(), int(time()), settings)


class Admin:
    def __init__(self, engine: Engine, identity: Identity) -> None:
        self._engine = engine
        self._identity = identity

    async def models(self, request: Request) -> Response:
        """The list in both forms at once, OpenAI's and Anthropic's: they do not contradict."""
        info = self._engine.model().info
        listed = self._model_fields(info, info.name)
        pages = {"has_more": False, "first_id": info.name, "last_id": info.name}
        return json_response(dump({"object": "list", "data": [listed], **pages}))

    async def model(self, request: Request) -> Response:
        info = self._engine.model().info
        name = answering_name(request.path_params["model_id"], info)
        return json_response(dump(self._model_fields(info, name)))

    def _model_fields(self, info: ModelInfo, name: str) -> dict[str, Any]:
        """The context's size goes by several names: clients look for any of them."""
        created = datetime.fromtimestamp(self._identity.created, UTC)
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": info.name,
            "created": self._identity.created,
            "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycle": "active",
            "owned_by": "mlxd",
            "context_length": info.context_size,
            "max_model_len": info.context_size,
            "max_input_tokens": info.context_size,
        }

    async def health(self, request: Request) -> Response:
        """200 only while requests can be served."""
        model = self._engine.status().model
        if model.state == "ready":
            return json_response(dump({"status": "ok"}))
        reason = model.error or f"The model is not ready: {model.state}."
        unavailable = ModelUnavailable(reason, retry_after=5)
        return error_response(unavailable, dump(unavailable_fields(model.state, unavailable)))

    async def status(self, request: Request) -> Response:
        identity = self._identity
        status = DaemonStatus(
            version=__version__,
            instance=identity.instance,
            pid=os.getpid(),
            port=identity.port,
            uptime_seconds=monotonic() - identity.started,
            engine=self._engine.status(),
            settings=identity.settings,
        )
        return json_response(STATUS_JSON.dump_json(status))

    async def root(self, request: Request) -> Response:
        """Some agents look whether anyone is at home."""
        return json_response(dump({"name": "mlxd", "version": __version__}))
