"""The models of this machine, for people: which there are, what is loaded, which is the default.

What changes that takes the daemon's own token. To load one waits until it is there. A model is
named in the query (`?model=ID`), because a folder's name has slashes; without one the default.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.api.authority import require_token
from daemon.api.door import Door
from daemon.api.responses import json_response
from daemon.errors import BadRequest
from daemon.status import ListedModel, ModelList
from mlx_backend.errors import BackendError
from mlx_backend.messages import LocalModel

log = logging.getLogger(__name__)

LIST_JSON = TypeAdapter(ModelList)
MODEL_JSON = TypeAdapter(ListedModel)

LOAD_SECONDS = 600.0
"""How long somebody who asked for nothing else waits for a model."""


def model_routes(door: Door) -> Sequence[BaseRoute]:
    api = _ModelsApi(door)
    return (
        Route("/mlxd/models", api.list),
        Route("/mlxd/models/load", api.load, methods=["POST"]),
        Route("/mlxd/models/unload", api.unload, methods=["POST"]),
        Route("/mlxd/models/use", api.use, methods=["POST"]),
    )


class _ModelsApi:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._engine = door.engine
        self._catalog = door.catalog

    async def list(self, request: Request) -> Response:
        await self._catalog.refresh()
        return self._listed()

    async def load(self, request: Request) -> Response:
        """Also where the daemon was started without its model because that had crashed it."""
        require_token(request)
        model = await self._asked(request)
        self._engine.lift_hold()
        log.info("%s was asked for by hand", model.name)
        async with self._engine.lease(self._catalog.source(model), LOAD_SECONDS):
            pass
        return self._one(model)

    async def unload(self, request: Request) -> Response:
        """Raises ModelInUse. Without a model: all that are loaded."""
        require_token(request)
        if "model" in request.query_params:
            keys = [(await self._asked(request)).key]
        else:
            keys = [each.key for each in self._engine.status().models if each.state == "ready"]
        for key in keys:
            await self._engine.unload(key)
        return self._listed()

    async def use(self, request: Request) -> Response:
        """The default for requests from now on; the settings file is who asks' business."""
        require_token(request)
        model = await self._asked(request)
        self._catalog.use(model)
        log.info("%s is the default model from now on", model.name)
        return self._one(model)

    async def _asked(self, request: Request) -> LocalModel:
        asked = request.query_params.get("model")
        try:
            return await self._catalog.adopt(asked or "", self._engine.status().models)
        except BackendError as error:
            raise BadRequest(str(error), field="model") from error

    def _listed(self) -> Response:
        models = ModelList(self._catalog.listed(self._engine.status().models))
        return json_response(LIST_JSON.dump_json(models))

    def _one(self, model: LocalModel) -> Response:
        found = self._catalog.described(model, self._engine.status().models)
        return json_response(MODEL_JSON.dump_json(found))
