"""What all endpoints of a daemon have in common, and a request's way in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time

from starlette.datastructures import Headers

from daemon.api.incoming import BODY_SECONDS, Departure
from daemon.api.rules import SEED_BITS
from daemon.api.sse import KeepAlive
from daemon.catalog import Catalog
from daemon.engine import LOAD_SECONDS, Engine
from mlx_backend.messages import LocalModel

REQUEST_ID = "mlxd.request_id"
"""Key of the ASGI scope that holds the request's id."""

ENCODERS = 2
"""Prompts encoded at once: encoding is for one core each, and the engine needs one too."""

LARGE_BYTES = 1_000_000
"""A body from here on is parsed beside the event loop, and waits for others like it: they have
one encoder between them, so that a small one always finds another."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request's way in, apart from what it asks for."""

    request_id: str
    headers: Headers
    body_bytes: int
    departure: Departure


@dataclass(slots=True)
class Door:
    """The engine, the models that may be asked for, the limits, and the places where prompts are
    encoded. Without a catalog there is the model that the engine starts with.

    `load_seconds`: how long a request waits for its model to be loaded.
    """

    engine: Engine
    max_body_bytes: int = 64 * 2**20
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    clock: Callable[[], float] = time
    cuts_telemetry: bool = True
    body_seconds: float = BODY_SECONDS
    draw_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS)
    encoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ENCODERS))
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    compiler: asyncio.Lock = field(default_factory=asyncio.Lock)
    load_seconds: float = LOAD_SECONDS
    catalog: Catalog = field(default_factory=lambda: Catalog(LocalModel("")))

    @asynccontextmanager
    async def encoder(self, body_bytes: int) -> AsyncIterator[None]:
        """A place to encode the prompt of such a body in."""
        if body_bytes < LARGE_BYTES:
            async with self.encoders:
                yield
        else:
            async with self.large, self.encoders:
                yield
