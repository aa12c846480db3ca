"""One model's states on disk: from the prefix tree into files, and back.

Belongs to the engine's thread. What is written when is decided by who calls; how much, by the
disk tier. Best effort in both directions: what goes wrong here costs reading again, never an
answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from daemon.disk_cache.files import BLOCK_TOKENS, Content, FileKind, KeyChain, StoredFile
from daemon.disk_cache.index import Coverage, Found
from daemon.disk_tier import DiskTier
from daemon.prefix_cache.kept import Kept
from mlx_backend.host_arrays import HostArray, end_to_end
from mlx_backend.interface import Span
from mlx_backend.messages import CacheKind, TokenIds

log = logging.getLogger(__name__)

WORTH_TOKENS = 16
"""A state of fewer is read again sooner than it is found on a disk."""


class Archive:
    """The files of the model of one identity. Outlives the model's weights."""

    def __init__(self, tier: DiskTier, identity: str, kind: CacheKind) -> None:
        self.identity = identity
        self._tier = tier
        self._kind = kind
        self._index = tier.index(identity)

    @property
    def is_ready(self) -> bool:
        """Whether all that is on disk of this model is known."""
        return self._tier.is_ready(self.identity)

    def save(self, kept: Kept) -> bool:
        """Have what is not on disk yet of a state written; whether all of it is or will be.

        Never raises: this is called while the tree changes.
        """
        try:
            return self._save(kept)
        except Exception:
            log.exception("a state of %d tokens could not be handed to the disk", len(kept.tokens))
            return False

    def find(self, tokens: TokenIds) -> Found:
        """What is on disk of a prompt, but for its last token, which is left to run."""
        return self._index.find(tokens, self._kind, len(tokens) - 1)

    def distrust(self, tokens: TokenIds) -> None:
        """What was restored of `tokens` did not fit the model: drop the last files on their way."""

    def _save(self, kept: Kept) -> bool:
        if len(kept.tokens) < WORTH_TOKENS or not self._is_restorable(kept):
            return True
        if not self.is_ready:
            return False  # what is there already would be written again, in other pieces
        covered = self._index.coverage(kept.tokens)
        is_dear = kept.is_end or kept.hits > 0
        for file in self._lacking(kept, covered):
            if not self._tier.may_save(_expected_bytes(kept, file), is_dear=is_dear):
                return False
            if not self._tier.save(file, _content(kept, file), is_dear=is_dear):
                return False
        return True

    def _is_restorable(self, kept: Kept) -> bool:
        return self._kind is not CacheKind.CHECKPOINTED or kept.checkpoint is not None

    def _lacking(self, kept: Kept, covered: Coverage) -> Iterator[StoredFile]:
        """The files that a state consists of and that are not there, parents first."""
        identity, end = self.identity, len(kept.tokens)
        needs_checkpoint = kept.checkpoint is not None and end not in covered.checkpoints
        if covered.length == end and not needs_checkpoint:
            return
        keys = KeyChain(identity)
        key = keys.extend(kept.tokens[: covered.length])
        parent = "" if covered.last is None else covered.last.key
        for start in range(covered.length, end, BLOCK_TOKENS):
            tokens = kept.tokens[start : start + BLOCK_TOKENS].copy()  # not the whole array's view
            key = keys.extend(tokens)
            stop = start + len(tokens)
            yield StoredFile(identity, FileKind.BLOCK, key, parent, start, stop, tokens)
            parent = key
        if needs_checkpoint:
            label = "" if kept.kind is None else kept.kind.value
            yield StoredFile(identity, FileKind.CHECKPOINT, key, parent, end, end, label=label)


def _expected_bytes(kept: Kept, file: StoredFile) -> int:
    if file.kind is FileKind.CHECKPOINT:
        return 0 if kept.checkpoint is None else kept.checkpoint.nbytes
    whole = sum(span.nbytes for span in kept.spans)
    return whole * (file.end - file.start) // len(kept.tokens)


def _content(kept: Kept, file: StoredFile) -> Content:
    """The arrays of a file, as views."""
    if file.kind is FileKind.CHECKPOINT:
        assert kept.checkpoint is not None
        return Content(kept.checkpoint.host_arrays(), kept.checkpoint.described())
    return Content(_interval(kept.spans, file.start, file.end))


def _interval(spans: Sequence[Span], start: int, stop: int) -> tuple[HostArray, ...]:
    """The arrays of tokens [start, stop) of spans that lie end to end."""
    pieces, at = [], 0
    for span in spans:
        first, last = max(start, at), min(stop, at + span.length)
        if first < last:
            pieces.append(span.host_arrays(first - at, last - at))
        at += span.length
    return end_to_end(pieces)
