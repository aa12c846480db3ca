"""A request's model: found by the id that it asks for, and kept loaded for as long as it lasts.

Loading takes its time, and there may have to be room first. Who leaves meanwhile leaves the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from daemon.api.door import Door
from daemon.api.incoming import ClientLeft, Departure
from mlx_backend.interface import LoadedModel


@dataclass(frozen=True, slots=True)
class Leased:
    """`key` is the engine's word for the model, `name` the id to answer with: what was asked."""

    model: LoadedModel
    key: str
    name: str


@asynccontextmanager
async def leased(asked: str | None, door: Door, departure: Departure) -> AsyncIterator[Leased]:
    """The model of an id, loaded. Raises what refuses it, or ClientLeft."""
    found = await door.catalog.find(asked, door.engine.status().models)
    source = door.catalog.source(found)
    lease = door.engine.lease(source, door.load_seconds)
    async with AsyncExitStack() as stack:
        entering = asyncio.ensure_future(stack.enter_async_context(lease))
        departure.react(entering.cancel)
        try:
            model = await entering
        except asyncio.CancelledError:
            if departure.has_left:
                raise ClientLeft from None
            raise
        yield Leased(model, "" if source is None else source.key, asked or model.info.name)
