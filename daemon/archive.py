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
from daemon.disk_cache.reads import Heard
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
            return self.is_ready and all(is_taken for _, is_taken in self.hand_over(kept))
        except Exception:
            log.exception("a state of %d tokens could not be handed to the disk", len(kept.tokens))
            return False

    def hand_over(
        self, kept: Kept, *, at_rest: bool = False, since: int | None = None
    ) -> Iterator[tuple[StoredFile, bool]]:
        """Have what is not on disk yet of a state written, file by file, parents first; with each,
        whether the tier took it. The first that it does not take is the last. Once `is_ready`:
        before that, what is there already would be written again in other pieces.

        `at_rest`: the state stays in memory meanwhile, and nothing else goes on. `since` a mark of
        the tier's: nothing that was used from then on gives way to it.
        """
        if not self._is_restorable(kept):
            return
        covered = self._index.coverage(kept.tokens)
        is_dear = kept.is_end or kept.hits > 0
        for file in self._lacking(kept, covered):
            nbytes = _expected_bytes(kept, file)
            is_taken = self._tier.may_save(nbytes, is_dear=is_dear, at_rest=at_rest)
            if is_taken:
                content = _content(kept, file)
                is_taken = self._tier.save(
                    file, content, is_dear=is_dear, at_rest=at_rest, since=since
                )
            yield file, is_taken
            if not is_taken:
                return

    def is_written(self, name: str) -> bool:
        """Whether a file is there, and on its way no more."""
        return self._index.is_written(name)

    def holds(self, kept: Kept) -> bool:
        """Whether all of a state is on disk, written; or what nobody would restore."""
        if not self._is_restorable(kept):
            return True
        found = self._index.find(kept.tokens, self._kind, len(kept.tokens))
        return found.length == len(kept.tokens) and not found.pending

    def find(self, tokens: TokenIds, most: int) -> Found:
        """What can be restored of a prompt, `most` tokens at most. Touches nothing."""
        return self._index.find(tokens, self._kind, most)

    def touch(self, found: Found) -> None:
        """It was used just now."""
        files = found.blocks if found.checkpoint is None else (*found.blocks, found.checkpoint)
        if files:
            self._tier.touch(self.identity, files)

    def ends(self, tokens: TokenIds) -> tuple[StoredFile, ...]:
        """The files of a state that all its others stand below."""
        found = self.find(tokens, len(tokens))
        checkpoint = () if found.checkpoint is None else (found.checkpoint,)
        return (*found.blocks[-1:], *checkpoint)

    def read(self, file: StoredFile, heard: Heard) -> None:
        """Have a file read; `heard` is called on this thread with what came of it."""
        self._tier.read(file, heard)

    def give_back(self, buffer: bytearray) -> None:
        """What was read there has been copied."""
        self._tier.give_back(buffer)

    def drop(self, file: StoredFile) -> None:
        """A file does not fit the model: it is not to be used again, nor what stands on it."""
        self._tier.drop(self.identity, file.name)

    def distrust(self, tokens: TokenIds) -> None:
        """What was restored of `tokens` did not fit the model: drop the last files on their way.

        Which of them was bad cannot be known; what stands on those that go, goes with them.
        """
        found = self._index.find(tokens, self._kind, len(tokens))
        if found.checkpoint is not None and found.length == len(tokens):
            self.drop(found.checkpoint)
        covered = self._index.coverage(tokens)
        if covered.last is not None and covered.length == len(tokens):
            self.drop(covered.last)

    @property
    def read_bytes_per_second(self) -> float | None:
        """How quickly files were read lately; None before the first."""
        return self._tier.read_bytes_per_second

    def note_restored(self, tokens: int, nbytes: int) -> None:
        """A request got so much from here."""
        self._tier.note_restored(tokens, nbytes)

    def _is_restorable(self, kept: Kept) -> bool:
        is_complete = self._kind is not CacheKind.CHECKPOINTED or kept.checkpoint is not None
        return is_complete and len(kept.tokens) >= WORTH_TOKENS

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
