"""A daemon whose model says what it is told, as a process: `daemon_process.py PORT FOLDER`.

FOLDER holds `scripts.json`, `model/` and, once requests came, `journal.jsonl`. Engine, tree,
dialects, output and server are the daemon's own, with its default settings; only the draw of
tokens is replaced, and a recorder stands before the application. Without `scripts.json` the model
says what it likes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from tokenizers import Tokenizer

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.endpoint import Door
from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.listening import bind_loopback
from daemon.prefix_cache.cache import PrefixCache
from daemon.server import Server
from daemon.settings import Settings
from mlx_backend.blas import prefer_openblas
from mlx_backend.loading import MlxModel, load
from mlx_backend.messages import ModelInfo
from tests.clients.forced import forced
from tests.clients.recorder import Recorder
from tests.clients.script import Actor, loaded

MAX_CACHE_BYTES = 1 << 30
GRACE_SECONDS = 1.0


def load_model(folder: Path) -> MlxModel:
    prefer_openblas()  # before mlx is imported, which loading does
    model = load(str(folder / "model"))
    script = folder / "scripts.json"
    if not script.exists():
        return model
    actor = Actor(loaded(json.loads(script.read_text(encoding="utf-8"))))
    return forced(model, actor, Tokenizer.from_file(str(folder / "model" / "tokenizer.json")))


def make_cache(info: ModelInfo) -> PrefixCache:
    return PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=MAX_CACHE_BYTES)


async def serve(port: int, folder: Path) -> None:
    engine = Engine(
        lambda: load_model(folder),
        make_cache=make_cache,
        options=EngineOptions(chunk_tokens=Settings().chunk_tokens),
    )

    async def close(grace_seconds: float) -> None:
        await engine.close(grace_seconds)

    sockets = bind_loopback(port)
    app = build_app(Door(engine), Identity.of_new_run("clients", port))
    engine.start()
    await Server(Recorder(app, folder / "journal.jsonl"), close, GRACE_SECONDS).serve(sockets)


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
