"""Files in their places in the index: what stands on what, and when it was used.

Structure only, and what may stand where; the sums and the order of use are in `index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from daemon.disk_cache.files import FileKind, StoredFile
from mlx_backend.messages import TokenIds


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """When a file was used last, to be compared with other files' only.

    `serial` counts the uses of this run; 0 is before it, where `used_at` tells them apart: seconds
    of the Unix epoch, which a clock that is set cannot mix up with this run's own order.
    """

    serial: int = 0
    used_at: float = 0.0


@dataclass(slots=True, eq=False)
class Entry:
    """A file in its place. `blocks` stand on it, by (offset, first token), and `checkpoints`, by
    offset. `depth` files are below it. `is_touched`: it was used, which nobody was told yet. The
    root is an entry without a file of its own."""

    file: StoredFile
    parent: Entry | None
    is_written: bool
    use: Use
    depth: int = 0
    is_touched: bool = False
    blocks: dict[tuple[int, int], Entry] = field(default_factory=dict)
    checkpoints: dict[int, Entry] = field(default_factory=dict)

    @property
    def is_block(self) -> bool:
        return self.file.kind is FileKind.BLOCK

    @property
    def is_leaf(self) -> bool:
        return not self.blocks and not self.checkpoints

    def below(self) -> Iterator[Entry]:
        """Itself and all that it stands on, but for the root."""
        entry: Entry | None = self
        while entry is not None and entry.parent is not None:
            yield entry
            entry = entry.parent

    def above(self) -> list[Entry]:
        """Itself and all that stands on it, each after what it stands on."""
        found = [self]
        for entry in found:  # grows as it is walked
            found += entry.blocks.values()
            found += entry.checkpoints.values()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A block on a prompt's way, which goes on to the block's token `end` and no further in it."""

    entry: Entry
    end: int


def fits(file: StoredFile, parent: Entry) -> bool:
    """Whether a file may stand on `parent`, where no other says the same yet."""
    if not may_stand(file, parent.file):
        return False
    if file.kind is FileKind.CHECKPOINT:
        return file.end not in parent.checkpoints
    return (file.start, int(file.tokens[0])) not in parent.blocks


def may_stand(file: StoredFile, below: StoredFile) -> bool:
    """Whether a file is well-formed and goes on from `below`: not as `below` itself goes on."""
    if file.kind is FileKind.CHECKPOINT:
        return below.start < file.end <= below.end
    if not 0 < file.end - file.start == len(file.tokens):
        return False
    if file.start == below.end:
        return True
    is_inside = below.start < file.start < below.end
    return is_inside and int(below.tokens[file.start - below.start]) != int(file.tokens[0])


def check_place(entry: Entry) -> None:
    """Assert that a file is where its description says, and may be there."""
    parent, file = entry.parent, entry.file
    assert parent is not None, "a file stands on nothing"
    assert file.parent == parent.file.key, "a file stands on another than its parent"
    assert entry.depth == parent.depth + 1, "a depth is wrong"
    assert may_stand(file, parent.file), "a file does not go on from what it stands on"
    if entry.is_block:
        assert parent.blocks[file.start, int(file.tokens[0])] is entry, "a block is misplaced"
    else:
        assert parent.checkpoints[file.end] is entry, "a checkpoint is misplaced"


def depth_of(entry: Entry) -> int:
    return entry.depth


def last_checkpoint(way: Sequence[Step], most: int) -> Entry | None:
    """The last checkpoint on a way, `most` tokens from its start at most."""
    for step in reversed(way):
        end = min(step.end, most)
        if offsets := [offset for offset in step.entry.checkpoints if offset <= end]:
            return step.entry.checkpoints[max(offsets)]
    return None


def common_length(block: TokenIds, tokens: TokenIds) -> int:
    """How many tokens the two have in common from their start."""
    length = min(len(block), len(tokens))
    differs = block[:length] != tokens[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
