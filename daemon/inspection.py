"""Questions to the engine's thread: asked from the event loop, answered between two chunks.

Whoever wants to see or change what belongs to that thread sends a function there; it gets an
`Inspection` and may read and change what it finds, but keep nothing of it. Its result, or what it
raised, comes back to the loop that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Records
from daemon.replies import Reply
from daemon.sessions import Sessions
from daemon.status import ModelStatus


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the engine's thread owns of one model, for the time of one question, whether its
    weights are loaded or not. `now` is the engine's clock's."""

    cache: PrefixCache
    sessions: Sessions
    records: Records
    model: ModelStatus
    now: float


@dataclass(frozen=True, slots=True)
class Question:
    """One question on its way."""

    ask: Callable[[Sequence[Inspection]], Any]
    reply: Reply

    def put_to(self, inspections: Sequence[Inspection]) -> Callable[[], None]:
        """Ask it, on the engine's thread; what is returned sends the answer off.

        `inspections`: of every model with a tree, the last used first.
        """
        try:
            result = self.ask(inspections)
        except Exception as raised:
            return partial(self.reply.fail, raised)
        return partial(self.reply.send, result)
