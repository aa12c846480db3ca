"""Which of one model's tokens are on disk: a tree of block files and of checkpoints, in memory.

Pure: what is on disk is told by `add` and `remove`. Belongs to one thread.

Invariants (`check` walks them all):
* A block stands on the block that holds the token before its first, wherever in it the two part;
  a checkpoint stands on the block that holds its last token. So a file is there with all that it
  stands on.
* No two ways are the same: of what stands on a block at one offset, no two blocks begin with the
  same token, and none begins as the block itself goes on.
* In the order of use, whatever stands on a file comes before it: the first one has nothing on it.
* Its numbers are the sums over its files; only those that are written have a size.

To find a prompt compares each of its tokens once, a block at a time, however many files there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from daemon.disk_cache.entries import (
    Entry,
    Step,
    Use,
    check_place,
    common_length,
    depth_of,
    fits,
    last_checkpoint,
)
from daemon.disk_cache.files import FileKind, StoredFile
from mlx_backend.messages import CacheKind, TokenIds, token_ids


@dataclass(frozen=True, slots=True)
class Found:
    """What can be restored of a prompt: `length` tokens by `blocks`, which cover them from the
    first token on, each from its start to its end or to where the next one begins; `checkpoint`
    where the model needs one. `pending`: those of them that are not written yet."""

    length: int = 0
    blocks: tuple[StoredFile, ...] = ()
    checkpoint: StoredFile | None = None
    pending: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far a sequence is covered by blocks: `length` tokens, the last of them in `last`;
    `checkpoints`: the offsets of the checkpoints on its way."""

    length: int = 0
    last: StoredFile | None = None
    checkpoints: frozenset[int] = frozenset()


class DiskIndex:
    """See the module. `uses` numbers the uses of this run: indexes that share it can be compared
    by `Use`."""

    def __init__(self, identity: str, uses: Iterator[int] | None = None) -> None:
        self.identity = identity
        self._uses = count(1) if uses is None else uses
        self._nbytes = 0
        self._tokens = 0
        self._root = Entry(StoredFile(identity, FileKind.BLOCK, "", "", 0, 0), None, True, Use())
        self._blocks: dict[str, Entry] = {"": self._root}
        self._order: OrderedDict[str, Entry] = OrderedDict()
        self._is_in_order = True

    def __contains__(self, name: str) -> bool:
        return name in self._order

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def file_count(self) -> int:
        return len(self._order)

    @property
    def block_count(self) -> int:
        return len(self._blocks) - 1

    @property
    def token_count(self) -> int:
        """Tokens that blocks hold; what is shared counts once."""
        return self._tokens

    @property
    def last_used_at(self) -> float:
        """The latest use before this run, in seconds of the Unix epoch; 0 if there was none, or
        one in this run."""
        return max((entry.use.used_at for entry in self._order.values()), default=0.0)

    def files(self) -> Iterator[StoredFile]:
        """All of them, pending ones, too."""
        return (entry.file for entry in self._order.values())

    def get(self, name: str) -> StoredFile | None:
        entry = self._order.get(name)
        return None if entry is None else entry.file

    def block(self, key: str) -> StoredFile | None:
        """The block of a key; None for "", on which the first blocks stand."""
        entry = self._blocks.get(key)
        return None if entry is None or entry is self._root else entry.file

    def is_written(self, name: str) -> bool:
        entry = self._order.get(name)
        return entry is not None and entry.is_written

    def add(self, file: StoredFile, *, is_written: bool, used_at: float | None = None) -> bool:
        """Put a file in its place; False if what it stands on is not there, or it is there.

        `used_at`: when it was used last, before this run; None is just now.
        """
        parent = self._blocks.get(file.parent)
        if parent is None or file.name in self._order or not fits(file, parent):
            return False
        entry = Entry(file, parent, is_written, Use(0, used_at or 0.0), parent.depth + 1)
        self._order[file.name] = entry
        if file.kind is FileKind.BLOCK:
            parent.blocks[file.start, int(file.tokens[0])] = entry
            self._blocks[file.key] = entry
            self._tokens += file.end - file.start
        else:
            parent.checkpoints[file.end] = entry
        self._nbytes += file.nbytes if is_written else 0
        if used_at is None:
            self.touch((file,))
        else:
            self._is_in_order = False
        return True

    def written(self, file: StoredFile, nbytes: int) -> None:
        """A pending file is on disk now, and so large. Nothing happens if it is not there."""
        entry = self._order.get(file.name)
        if entry is not None and entry.file is file and not entry.is_written:
            entry.file, entry.is_written = replace(file, nbytes=nbytes), True
            self._nbytes += nbytes

    def remove(self, name: str) -> tuple[StoredFile, ...]:
        """Take a file out, with all that stands on it; what was taken, the deepest first."""
        entry = self._order.get(name)
        if entry is None:
            return ()
        taken = entry.above()[::-1]
        for each in taken:
            self._take(each)
        return tuple(each.file for each in taken)

    def clear(self) -> tuple[StoredFile, ...]:
        """Take all files out; what was taken, the deepest first."""
        names = [entry.file.name for entry in self._root.above() if entry.parent is self._root]
        return tuple(file for name in names for file in self.remove(name))

    def _take(self, entry: Entry) -> None:
        file, parent = entry.file, entry.parent
        assert parent is not None
        del self._order[file.name]
        if file.kind is FileKind.BLOCK:
            del self._blocks[file.key], parent.blocks[file.start, int(file.tokens[0])]
            self._tokens -= file.end - file.start
        else:
            del parent.checkpoints[file.end]
        self._nbytes -= file.nbytes if entry.is_written else 0
        entry.parent = None

    def find(self, tokens: TokenIds, kind: CacheKind, most: int) -> Found:
        """What can be restored of `tokens`, `most` tokens at most. Touches nothing."""
        way = self._way(tokens)
        length = min(way[-1].end, most) if way else 0
        checkpoint = None
        if kind is CacheKind.CHECKPOINTED:
            checkpoint = last_checkpoint(way, length)
            length = checkpoint.file.end if checkpoint else 0
        if length <= 0 or kind is CacheKind.UNCACHEABLE:
            return Found()
        used = [step.entry for step in way if step.entry.file.start < length]
        files = [*used, checkpoint] if checkpoint else used
        return Found(
            length,
            tuple(entry.file for entry in used),
            checkpoint.file if checkpoint else None,
            tuple(entry.file for entry in files if not entry.is_written),
        )

    def coverage(self, tokens: TokenIds) -> Coverage:
        """How far `tokens` are covered, pending files included. Touches nothing."""
        way = self._way(tokens)
        if not way:
            return Coverage()
        checkpoints = (at for step in way for at in step.entry.checkpoints if at <= step.end)
        return Coverage(way[-1].end, way[-1].entry.file, frozenset(checkpoints))

    def _way(self, tokens: TokenIds) -> list[Step]:
        """The blocks that hold a sequence, from its first token to where it leaves them."""
        way: list[Step] = []
        entry, at, tokens = self._root, 0, token_ids(tokens)
        while at < len(tokens) and (child := entry.blocks.get((at, int(tokens[at])))):
            entry, file = child, child.file
            at = file.start + common_length(file.tokens, tokens[file.start : file.end])
            way.append(Step(child, at))
        return way

    def touch(self, files: Sequence[StoredFile], *, is_use: bool = True) -> None:
        """They were used just now, and all that they stand on; or only come last in the order, as
        if they had been."""
        self._put_in_order()
        use = Use(next(self._uses))
        used: set[Entry] = set()
        for file in files:
            for entry in self._order[file.name].below() if file.name in self._order else ():
                if entry in used:
                    break
                used.add(entry)
        for entry in sorted(used, key=depth_of, reverse=True):
            entry.use = use
            entry.is_touched = entry.is_touched or is_use
            self._order.move_to_end(entry.file.name)

    def take_touched(self) -> tuple[StoredFile, ...]:
        """Written files that were used since they were asked for last, the latest first."""
        self._put_in_order()
        latest = reversed(self._order.values())
        told = [entry for entry in latest if entry.is_touched and entry.is_written]
        for entry in told:
            entry.is_touched = False
        return tuple(entry.file for entry in told)

    def oldest(self) -> tuple[Use, StoredFile] | None:
        """The least recently used of the written files that nothing stands on, and its use."""
        self._put_in_order()
        for entry in self._order.values():  # the first, but for those that are not written yet
            if entry.is_written and entry.is_leaf:
                return entry.use, entry.file
        return None

    def _put_in_order(self) -> None:
        """Sort, after files of earlier runs were added: what a file stands on was used with it."""
        if self._is_in_order:
            return
        entries = sorted(self._order.values(), key=depth_of, reverse=True)
        for entry in entries:
            if entry.parent is not None and entry.parent is not self._root:
                entry.parent.use = max(entry.parent.use, entry.use)
        entries.sort(key=lambda entry: (entry.use.serial, entry.use.used_at, -entry.depth))
        self._order = OrderedDict((entry.file.name, entry) for entry in entries)
        self._is_in_order = True

    def check(self) -> None:
        """Walk every invariant; AssertionError names the one that is broken."""
        self._put_in_order()
        entries = self._root.above()[1:]
        assert {entry.file.name for entry in entries} == set(self._order), "not all are in order"
        assert len(entries) == len(self._order), "two files have one name"
        blocks = {entry.file.key: entry for entry in entries if entry.is_block}
        assert {**blocks, "": self._root} == self._blocks, "not all blocks have their key"
        sizes = (entry.file.nbytes for entry in entries if entry.is_written)
        assert self._nbytes == sum(sizes), "the bytes do not add up"
        tokens = sum(entry.file.end - entry.file.start for entry in blocks.values())
        assert self._tokens == tokens, "the tokens do not add up"
        rank = {name: place for place, name in enumerate(self._order)}
        for entry in entries:
            check_place(entry)
            if (parent := entry.parent) is not self._root and parent is not None:
                assert rank[entry.file.name] < rank[parent.file.name], "used after what it is on"
                assert entry.use <= parent.use, "used later than what it is on"
