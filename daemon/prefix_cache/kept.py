"""A state of the tree as others see it, who want to keep it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.interface import Checkpoint, Span
from mlx_backend.messages import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """All of `tokens`, int32, covered by `spans` end to end; `checkpoint` after the last of them,
    None where the model needs none or the node has none.

    hits: matches that were restored from here. is_end: nothing in the tree goes on from it, so it
    is what a conversation, or a branch of one, ends with.
    """

    tokens: TokenIds
    spans: tuple[Span, ...]
    checkpoint: Checkpoint | None
    kind: EntryKind | None
    hits: int
    is_end: bool
