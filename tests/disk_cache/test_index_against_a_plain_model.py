"""The index against a list of files with all their tokens; every invariant after every step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.disk_cache.files import FileKind, StoredFile
from daemon.disk_cache.index import DiskIndex
from mlx_backend.messages import CacheKind, token_ids
from tests.disk_cache.files_on_disk import IDENTITY, checkpoint, lacking

BLOCK_TOKENS = 5

sequences = st.lists(st.integers(0, 2), min_size=1, max_size=20).map(tuple)
kinds = st.sampled_from([CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])


@dataclass(eq=False)
class Plain:
    """A file and all tokens to its end. `used`: (run, when); of earlier runs it is (0, time)."""

    file: StoredFile
    tokens: tuple[int, ...]
    used: tuple[int, float]
    nbytes: int | None = None

    @property
    def is_block(self) -> bool:
        return self.file.kind is FileKind.BLOCK

    def is_on(self, other: Plain) -> bool:
        """Whether it stands on the other, directly or not."""
        below = self.tokens[: self.file.start]
        return other.is_block and common(below, other.tokens) > other.file.start

    @property
    def own(self) -> int:
        return self.file.end - self.file.start


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = DiskIndex(IDENTITY)
        self.files: list[Plain] = []
        self.uses = 0

    def add(self, file: StoredFile, tokens: tuple[int, ...]) -> None:
        assert self.index.add(file, is_written=False)
        plain = Plain(file, tokens, (0, 0.0))
        self.files.append(plain)
        self.use(plain)

    def use(self, *used: Plain) -> None:
        self.uses += 1
        for file in self.files:
            if file in used or any(each.is_on(file) for each in used):
                file.used = (self.uses, 0.0)

    def leaves(self) -> list[Plain]:
        return [
            file
            for file in self.files
            if file.nbytes is not None and not any(other.is_on(file) for other in self.files)
        ]

    @rule(ids=sequences)
    def store(self, ids: tuple[int, ...]) -> None:
        for file in lacking(self.index, ids, BLOCK_TOKENS):
            self.add(file, ids[: file.end])

    @rule(ids=sequences, data=st.data())
    def store_a_checkpoint(self, ids: tuple[int, ...], data: st.DataObject) -> None:
        length = self.index.coverage(token_ids(ids)).length
        if length:
            end = data.draw(st.integers(1, length))
            if end not in self.index.coverage(token_ids(ids)).checkpoints:
                self.add(checkpoint(self.index, ids[:end]), ids[:end])

    @precondition(lambda self: self.files)
    @rule(data=st.data(), nbytes=st.integers(1, 1000))
    def write(self, data: st.DataObject, nbytes: int) -> None:
        for plain in data.draw(st.lists(st.sampled_from(self.files), unique=True)):
            if plain.nbytes is None:
                self.index.written(plain.file, nbytes)
                plain.nbytes = nbytes

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        used = data.draw(st.lists(st.sampled_from(self.files), min_size=1, max_size=3))
        self.index.touch([plain.file for plain in used])
        self.use(*used)

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.files))
        expected = [file for file in self.files if file is gone or file.is_on(gone)]
        taken = self.index.remove(gone.file.name)
        assert {file.name for file in taken} == {plain.file.name for plain in expected}
        by_name = {plain.file.name: plain for plain in expected}
        order = [by_name[file.name] for file in taken]
        for place, plain in enumerate(order):
            assert not any(later.is_on(plain) for later in order[place:])
        self.files = [file for file in self.files if file not in expected]

    @precondition(lambda self: self.leaves())
    @rule()
    def evict(self) -> None:
        found = self.index.oldest()
        assert found is not None
        oldest = min(plain.used for plain in self.leaves())
        [gone] = [plain for plain in self.leaves() if plain.file.name == found[1].name]
        assert gone.used == oldest
        self.index.remove(gone.file.name)
        self.files.remove(gone)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """What is written is read in anew, in an order that has parents first."""
        written = [plain for plain in self.files if plain.nbytes is not None]
        kept = [plain for plain in written if self.is_held_by(plain, written)]
        shuffled = data.draw(st.permutations(kept))
        self.index, self.uses = DiskIndex(IDENTITY), 0
        for plain in sorted(shuffled, key=lambda plain: (not plain.is_block, plain.file.start)):
            used_at = data.draw(st.floats(0, 9, width=16))
            plain.used = (0, used_at)
            plain.file = StoredFile(
                IDENTITY,
                plain.file.kind,
                plain.file.key,
                plain.file.parent,
                plain.file.start,
                plain.file.end,
                plain.file.tokens,
                nbytes=plain.nbytes or 0,
            )
            assert self.index.add(plain.file, is_written=True, used_at=used_at)
        self.files = kept
        for plain in kept:
            above = [other.used for other in kept if other.is_on(plain)]
            plain.used = max([plain.used, *above])

    def is_held_by(self, plain: Plain, written: list[Plain]) -> bool:
        """Whether all that it stands on is written."""
        return all(other in written for other in self.files if plain.is_on(other))

    @rule(ids=sequences, kind=kinds, most=st.integers(0, 20))
    def find(self, ids: tuple[int, ...], kind: CacheKind, most: int) -> None:
        blocks = [plain for plain in self.files if plain.is_block]
        length = min(most, max((common(ids, block.tokens) for block in blocks), default=0))
        used = []
        if kind is CacheKind.CHECKPOINTED:
            states = [
                plain
                for plain in self.files
                if not plain.is_block and plain.tokens == ids[:length][: len(plain.tokens)]
            ]
            length = max((len(plain.tokens) for plain in states), default=0)
            used = [plain for plain in states if len(plain.tokens) == length]
        way = [block for block in blocks if common(ids[:length], block.tokens) > block.file.start]
        way.sort(key=lambda block: block.file.start)
        found = self.index.find(token_ids(ids), kind, most)
        assert found.length == length
        assert [file.name for file in found.blocks] == [block.file.name for block in way]
        names = [found.checkpoint.name] if found.checkpoint else []
        assert names == [plain.file.name for plain in used]
        pending = {plain.file.name for plain in (*way, *used) if plain.nbytes is None}
        assert {file.name for file in found.pending} == pending
        self.check_tokens(ids, found.length, [block.file for block in way])

    def check_tokens(self, ids: tuple[int, ...], length: int, blocks: list[StoredFile]) -> None:
        """The blocks, each to where the next begins, are the prompt."""
        ends = [*(block.start for block in blocks[1:]), length]
        told: list[int] = []
        for block, end in zip(blocks, ends, strict=False):
            told += block.tokens[: end - block.start].tolist()
        assert tuple(told) == ids[:length]

    @rule(ids=sequences)
    def cover(self, ids: tuple[int, ...]) -> None:
        blocks = [plain for plain in self.files if plain.is_block]
        covered = self.index.coverage(token_ids(ids))
        assert covered.length == max((common(ids, block.tokens) for block in blocks), default=0)
        states = {
            len(plain.tokens)
            for plain in self.files
            if not plain.is_block and plain.tokens == ids[: len(plain.tokens)]
        }
        assert covered.checkpoints == states
        if covered.last is not None:
            assert covered.last.start < covered.length <= covered.last.end

    @invariant()
    def adds_up(self) -> None:
        self.index.check()
        assert self.index.file_count == len(self.files)
        assert self.index.nbytes == sum(plain.nbytes or 0 for plain in self.files)
        assert self.index.token_count == sum(plain.own for plain in self.files)


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestIndex = IndexMachine.TestCase
