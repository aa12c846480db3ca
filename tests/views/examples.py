"""Values that a daemon could say, and how they come out of a pipe."""

import io
from typing import Any

from rich.console import Console, RenderableType

from daemon.status import (
    CacheContents,
    CacheStatus,
    DaemonStatus,
    EngineStatus,
    EntryStatus,
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    SessionStatus,
    TotalsStatus,
)

UUID = "0b3c4d5e-6f70-4812-9a3b-4c5d6e7f8091"
WIDTHS = (80, 120)


def shown(renderable: RenderableType, width: int = 80) -> str:
    """As it comes out of a pipe; no line is wider than asked for."""
    pipe = io.StringIO()
    Console(file=pipe, width=width, highlight=False).print(renderable)
    text = pipe.getvalue()
    assert max(map(len, text.splitlines())) <= width, text
    return text


def joined(renderable: RenderableType, width: int = 80) -> str:
    """What is shown with words that were wrapped put together again; no blanks."""
    return "".join(shown(renderable, width).split())


def request(phase: str = "done", **changes: Any) -> RequestStatus:
    values = {
        "id": "req_0123456789abcdef",
        "phase": phase,
        "session": "main",
        "prompt": 12_034,
        "reused": 11_000,
        "read": 1_034,
        "generated": 55,
        "waited_seconds": 0.02,
        "first_token_seconds": 1.25,
        "seconds": 3.5,
    }
    return RequestStatus(**(values | changes))


def session(name: str = "main", **changes: Any) -> SessionStatus:
    values = {
        "id": name,
        "label": name,
        "turns": 34,
        "prompt": 3_400_000,
        "reused": 3_300_000,
        "read": 100_000,
        "generated": 12_345,
        "live_tokens": 112_089,
        "live_bytes": 34_000_000,
        "age_seconds": 7_200.0,
        "idle_seconds": 34.0,
    }
    return SessionStatus(**(values | changes))


def entry(
    number: int, parent: int | None, tokens: int, own_tokens: int, **changes: Any
) -> EntryStatus:
    values = {
        "kind": "prompt_end",
        "session": "main",
        "own_bytes": own_tokens * 1_000,
        "has_checkpoint": False,
        "live_of": None,
        "pins": 0,
        "hits": 0,
        "age_seconds": 300.0,
        "idle_seconds": 20.0,
    }
    return EntryStatus(
        id=number, parent=parent, tokens=tokens, own_tokens=own_tokens, **(values | changes)
    )


MODEL = ModelStatus(
    state="ready",
    name="SmolLM2",
    path="/models/smol",
    identity="0" * 64,
    cache_kind="checkpointed",
    cache_classes=("KVCache", "ArraysCache"),
    context_size=8192,
    weight_bytes=538_000_000,
    warnings=("the [bold]unknown[/] layer turns reuse off",),
)
CACHE = CacheStatus(
    entries=3,
    max_entries=9,
    tokens=12_000,
    bytes=270_000_000,
    max_bytes=4 * 10**9,
    live_leaves=2,
    arrays=70,
    max_arrays=400_000,
    evicted_entries=12,
    evicted_by_bytes=9,
    evicted_by_idle=3,
)
CONTENTS = CacheContents(
    CACHE,
    (
        entry(1, None, 4_000, 4_000, kind="head", has_checkpoint=True),
        entry(2, 1, 5_000, 1_000, kind=""),
        entry(3, 2, 5_600, 600, kind="turn_end"),
        entry(4, 3, 9_000, 3_400, kind="turn_end", live_of="main", pins=1, hits=7),
        entry(5, 2, 5_700, 700, kind="partial", session=UUID, live_of=UUID),
        entry(6, 1, 6_000, 2_000, session="sub", live_of="main"),
        entry(7, None, 300, 300, session="title"),
    ),
)


def status(**engine: Any) -> DaemonStatus:
    values = {
        "model": MODEL,
        "cache": CACHE,
        "totals": TotalsStatus(requests=7, cancelled=1, prompt=100, reused=60, read=40),
        "memory": MemoryStatus(process_bytes=1_200_000_000),
    }
    return DaemonStatus("0.1.0", "abc", 4711, 8642, 3723.0, EngineStatus(**(values | engine)))
