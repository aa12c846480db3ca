"""What the daemon says of itself: its models, its health, its status. Never waits for a chunk."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, time
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from daemon import __version__
from daemon.api.door import Door
from daemon.api.openai_fields import dump
from daemon.api.responses import error_response, json_response, unavailable_fields
from daemon.errors import ModelUnavailable
from daemon.status import DaemonStatus, ListedModel, MachineStatus

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


MachineLook = Callable[[], Awaitable[MachineStatus]]


async def nothing_known() -> MachineStatus:
    """A `MachineLook` where nobody tells how the machine is doing."""
    return MachineStatus()


class Admin:
    def __init__(self, door: Door, identity: Identity, machine: MachineLook) -> None:
        self._machine = machine
        self._engine = door.engine
        self._catalog = door.catalog
        self._identity = identity

    async def models(self, request: Request) -> Response:
        """The list in both forms at once, OpenAI's and Anthropic's: they do not contradict."""
        await self._catalog.refresh()
        models = self._catalog.listed(self._engine.status().models)
        listed = [self._model_fields(each.id, each) for each in models]
        ids = [each.id for each in models]
        ends = (ids[0], ids[-1]) if ids else (None, None)
        pages = {"has_more": False, "first_id": ends[0], "last_id": ends[1]}
        return json_response(dump({"object": "list", "data": listed, **pages}))

    async def model(self, request: Request) -> Response:
        asked, statuses = request.path_params["model_id"], self._engine.status().models
        found = await self._catalog.find(asked or "/", statuses)
        listed = self._catalog.described(found, statuses)
        return json_response(dump(self._model_fields(asked, listed)))

    def _model_fields(self, id: str, model: ListedModel) -> dict[str, Any]:
        """The context's size goes by several names: clients look for any of them."""
        created = datetime.fromtimestamp(self._identity.created, UTC)
        return {
            "id": id,
            "object": "model",
            "type": "model",
            "display_name": model.name,
            "created": self._identity.created,
            "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycle": "active",
            "owned_by": "mlxd",
            "context_length": model.context_size,
            "max_model_len": model.context_size,
            "max_input_tokens": model.context_size,
        }

    async def health(self, request: Request) -> Response:
        """200 only while requests can be served: a model that was idle is loaded for the next."""
        model = self._engine.status().model
        if model.is_serving:
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
            machine=await self._machine(),
        )
        return json_response(STATUS_JSON.dump_json(status))

    async def root(self, request: Request) -> Response:
        """Some agents look whether anyone is at home."""
        return json_response(dump({"name": "mlxd", "version": __version__}))
