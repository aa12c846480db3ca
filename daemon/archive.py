"""One model's states on disk: from the prefix tree into files, and back.

Belongs to the engine's thread. What is written when is decided by who calls; how much, by the
disk tier. Best effort in both directions: what goes wrong here costs reading again, never an
answer.
"""

from __future__ import annotations

from daemon.disk_cache.index import Found
from daemon.disk_tier import DiskTier
from daemon.prefix_cache.kept import Kept
from mlx_backend.messages import CacheKind, TokenIds


class Archive:
    def __init__(self, tier: DiskTier, identity: str, kind: CacheKind) -> None: ...

    @property
    def is_ready(self) -> bool:
        """Whether all that is on disk of this model is known."""

    def save(self, kept: Kept) -> bool:
        """Have what is not on disk yet of a state written; whether all of it is or will be.

        Never raises: this is called while the tree changes.
        """

    def find(self, tokens: TokenIds) -> Found:
        """What is on disk of a prompt, but for its last token, which is left to run."""

    def distrust(self, tokens: TokenIds) -> None:
        """What was restored of `tokens` did not fit the model: drop the last files on their way."""
