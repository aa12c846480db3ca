"""The tier and a disk in memory, at odds in time: whatever was asked and whenever it is done, what
the tier knows in the end is what is there, and within the limits."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from daemon.disk_cache.files import StoredFile
from mlx_backend.messages import CacheKind, token_ids
from tests.disk_cache.fake_disk import DISK_BYTES, Disk, Run, content
from tests.disk_cache.files_on_disk import checkpoint

BLOCK_TOKENS = 4
FILE_BYTES = BLOCK_TOKENS * 1004 + 500

sequences = st.lists(st.integers(0, 2), min_size=1, max_size=16)
identities = st.sampled_from(["a", "b"])


class TierMachine(RuleBasedStateMachine):
    @initialize(files=st.integers(2, 12), max_files=st.integers(2, 12), strangers=st.integers(0, 5))
    def begin(self, files: int, max_files: int, strangers: int) -> None:
        self.limits = {
            "max_bytes": files * FILE_BYTES + 3000,
            "max_files": max_files,
            "floor_bytes": FILE_BYTES,
        }
        self.disk = Disk()
        for number in range(strangers):
            self.disk.place("old", str(number), FILE_BYTES, float(number))
        self.run = Run(self.disk, **self.limits)

    @rule(identity=identities, ids=sequences, is_dear=st.booleans())
    def save(self, identity: str, ids: list[int], is_dear: bool) -> None:
        said = self.run.save(identity, ids, BLOCK_TOKENS, is_dear=is_dear)
        assert said == sorted(said, reverse=True)
        index = self.run.tier.index(identity)
        if said and all(said):
            state = checkpoint(index, ids)
            self.run.tier.save(state, content(state), is_dear=is_dear)

    @rule(identity=identities, ids=sequences)
    def use(self, identity: str, ids: list[int]) -> None:
        self.run.use(identity, ids)

    @rule(identity=identities, ids=sequences)
    def read(self, identity: str, ids: list[int]) -> None:
        index = self.run.tier.index(identity)
        for file in index.find(token_ids(ids), CacheKind.SLICEABLE, len(ids)).blocks:
            if index.is_written(file.name):
                self.run.tier.read(file, lambda result: None)

    @rule(identity=identities, ids=sequences)
    def drop(self, identity: str, ids: list[int]) -> None:
        found = self.run.tier.index(identity).coverage(token_ids(ids))
        if found.last is not None:
            self.run.tier.drop(identity, found.last.name)

    @rule(start=st.sampled_from([-1, 0, 4, 8]))
    def break_down(self, start: int) -> None:
        """Files that start there can be neither written nor read; or none is wrong any more."""

        def failure(file: StoredFile) -> str:
            return "broken" if file.start == start else ""

        self.disk.failure = failure

    @rule(files=st.integers(0, 12))
    def fill_by_others(self, files: int) -> None:
        self.disk.others_bytes = DISK_BYTES - files * FILE_BYTES - 100

    @rule()
    def note_uses(self) -> None:
        self.run.tier.note_uses()

    @rule()
    def forget(self) -> None:
        self.run.tier.forget()

    @rule()
    def wait(self) -> None:
        self.run.seconds += 60

    @rule(steps=st.integers(1, 3))
    def do_some(self, steps: int) -> None:
        for _ in range(steps):
            self.run.work(is_once=True)

    @rule()
    def do_all(self) -> None:
        self.run.work()
        self.run.work()
        for identity in ("a", "b"):
            self.run.tier.index(identity)
        self.run.work()
        for identity in ("a", "b"):
            self.run.check_index(identity)
        assert self.disk.nbytes <= self.limits["max_bytes"]
        assert len(self.disk.files) <= self.limits["max_files"]

    @rule()
    def kill(self) -> None:
        """A daemon ends without a word, and another begins."""
        self.run = Run(self.disk, **self.limits)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.do_all()


TierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTier = TierMachine.TestCase
