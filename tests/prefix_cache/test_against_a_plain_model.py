"""The tree against a list of what was stored, with every invariant walked after every step."""

from __future__ import annotations

from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from daemon.prefix_cache.cache import Match
from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, token_ids
from tests.prefix_cache.traffic import UNLIMITED, Traffic, restored

CHECKPOINT_BYTES = 300
MAX_BRANCHES = 4
EVERYBODY = ""

tails = st.lists(st.integers(0, 2), min_size=1, max_size=24)
kinds = st.sampled_from(list(EntryKind))
sessions = st.sampled_from(["a", "b", "c", "anonymous"])
holders = st.sampled_from([None, "a", "b", "c"])


class Limited(Enum):
    """What is limited, beside what a step of the machine limits."""

    NOTHING = "nothing"
    ENTRIES = "entries"
    ALL = "all"


def common_prefix(first: list[int], second: list[int] | tuple[int, ...]) -> int:
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


class Model:
    """Every state that somebody wants, as a plain dictionary: who wants it, by its tokens."""

    def __init__(self, kind: CacheKind, minimum_gap: int) -> None:
        self.kind = kind
        self.minimum_gap = minimum_gap
        self.wanted: dict[tuple[int, ...], set[str]] = {}
        self.leaves: dict[str, list[tuple[int, ...]]] = {}

    def add(self, key: tuple[int, ...], holder: str | None, shared: bool) -> None:
        """`key` is stored for everybody, if `shared`, and for `holder`, if there is one."""
        if shared:
            self.wanted.setdefault(key, set()).add(EVERYBODY)
        if holder is None:
            return
        self.wanted.setdefault(key, set()).add(holder)
        leaves = self.leaves.get(holder, [])
        kept = [leaf for leaf in leaves if leaf != key[: len(leaf)]] + [key]
        self.leaves[holder] = kept[-MAX_BRANCHES:]
        self._drop_all(holder, but=self.leaves[holder])

    def let_go(self, holder: str) -> None:
        self.leaves.pop(holder, None)
        self._drop_all(holder, but=[])

    def _drop_all(self, holder: str, but: list[tuple[int, ...]]) -> None:
        for key, wanting in list(self.wanted.items()):
            if key not in but:
                wanting.discard(holder)
            if not wanting:
                del self.wanted[key]

    def common(self, tokens: list[int]) -> int:
        return max((common_prefix(tokens, key) for key in self.wanted), default=0)

    def restorable(self, tokens: list[int]) -> int:
        most = len(tokens) - 1
        if self.kind is CacheKind.SLICEABLE:
            return min(most, self.common(tokens))
        return max((length for length in self._prefixes(tokens) if length <= most), default=0)

    def wants(self, tokens: list[int]) -> bool:
        """Whether anything is left to capture."""
        if self.kind is CacheKind.SLICEABLE:
            return self.common(tokens) < len(tokens)
        gaps = [len(tokens) - length for length in self._prefixes(tokens)]
        return all(gap and gap >= self.minimum_gap for gap in gaps)

    def _prefixes(self, tokens: list[int]) -> list[int]:
        return [len(key) for key in self.wanted if tuple(tokens[: len(key)]) == key]


class Machine(RuleBasedStateMachine):
    """Without limits the model says exactly what is restored, with limits the most.

    While only entries are limited, it says exactly what sessions hold.
    """

    kind: CacheKind
    limited: Limited

    @initialize(
        gap=st.sampled_from([1, 4]),
        max_entries=st.sampled_from([None, 0, 1, 2, 4]),
        max_bytes=st.sampled_from([2_000, 4_000, 8_000, UNLIMITED]),
        max_arrays=st.sampled_from([4, 12, 400_000]),
    )
    def start(self, gap: int, max_entries: int | None, max_bytes: int, max_arrays: int) -> None:
        limits = {"max_entries": max_entries, "max_bytes": max_bytes, "max_arrays": max_arrays}
        if self.limited is not Limited.ALL:
            del limits["max_bytes"], limits["max_arrays"]
        if self.limited is Limited.NOTHING:
            del limits["max_entries"]
        self.traffic = Traffic(
            self.kind,
            minimum_gap=gap,
            checkpoint_bytes=CHECKPOINT_BYTES,
            block_tokens=8,
            **limits,
        )
        self.keeps_entries = limits.get("max_entries") != 0
        self.model = Model(self.kind, gap)
        self.ever = Model(self.kind, gap)
        self.prompts: list[list[int]] = [[]]
        self.held: list[tuple[list[int], Match]] = []

    @rule(
        data=st.data(),
        tail=tails,
        kind=kinds,
        session=sessions,
        holder=holders,
        shared=st.booleans(),
    )
    def store(
        self,
        data: st.DataObject,
        tail: list[int],
        kind: EntryKind,
        session: str,
        holder: str | None,
        shared: bool,
    ) -> None:
        prompt = self.draw_prompt(data) + tail
        self.prompts.append(prompt)
        if holder is not None and kind is EntryKind.PARTIAL:
            kind = EntryKind.TURN_END  # the end of a cut turn replaces no whole one
        wanted = self.traffic.cache.wants(token_ids(prompt), kind, holder, shared)
        stored = self.traffic.store(prompt, kind, session, holder, shared)
        has_use = holder is not None or (shared and self.keeps_entries)
        if self.limited is Limited.NOTHING and not self.held:
            assert wanted == stored == (has_use and self.model.wants(prompt))
        if stored or (has_use and not wanted):
            self.remember(prompt, holder, shared)

    @rule(data=st.data(), holder=holders, shared=st.booleans())
    def hold(self, data: st.DataObject, holder: str | None, shared: bool) -> None:
        prompt = self.draw_prompt(data)
        is_held = self.traffic.cache.hold(token_ids(prompt), holder, shared=shared)
        if is_held:
            self.remember(prompt, holder, shared)

    def remember(self, prompt: list[int], holder: str | None, shared: bool) -> None:
        """What was marked is as much of the prompt as can be restored now."""
        key = tuple(prompt[: self.traffic.cache.peek(token_ids([*prompt, 9]))])
        if key:
            self.model.add(key, holder, shared and self.keeps_entries)
            self.ever.add(key, None, True)

    @rule(holder=holders, why=st.sampled_from(["idle", "reset", "sessions"]))
    def let_go(self, holder: str | None, why: str) -> None:
        self.traffic.cache.let_go(holder or "a stranger", why)
        self.model.let_go(holder or "a stranger")
        assert self.traffic.cache.held(holder or "a stranger") == (0, 0)

    @rule(data=st.data(), tail=tails)
    def match(self, data: st.DataObject, tail: list[int]) -> None:
        prompt = self.draw_prompt(data) + tail
        match = self.traffic.match(prompt)
        assert match.length <= self.ever.restorable(prompt)
        assert match.common <= self.ever.common(prompt)
        if self.limited is Limited.NOTHING:
            assert match.length >= self.model.restorable(prompt)
            assert match.common >= self.model.common(prompt)
            if not self.held:
                assert match.length == self.model.restorable(prompt)
                assert match.common == self.model.common(prompt)
        self.held.append((prompt, match))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        prompt, match = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.traffic.cache.release(match)
        self.traffic.cache.release(match)
        assert restored(match, self.kind) == prompt[: match.length], "a snapshot changed"

    @precondition(lambda self: self.held and self.limited is Limited.ALL)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        prompt, match = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.traffic.cache.reject(match)
        assert not match.length or self.traffic.cache.peek(token_ids(prompt)) < match.length

    @precondition(lambda self: self.limited is Limited.ALL)
    @rule(nbytes=st.integers(0, 4_000))
    def give_back(self, nbytes: int) -> None:
        before = self.traffic.cache.status().bytes
        freed = self.traffic.cache.give_back(nbytes)
        assert self.traffic.cache.status().bytes == before - freed
        if freed < nbytes:
            entries = self.traffic.cache.entries()
            parents = {entry.parent for entry in entries}
            assert all(entry.pins for entry in entries if entry.id not in parents)
            assert all(entry.pins for entry in entries if entry.has_checkpoint)

    @precondition(lambda self: self.limited is Limited.ALL)
    @rule(max_bytes=st.sampled_from([0, 1_500, 3_000, 6_000, UNLIMITED]))
    def set_max_bytes(self, max_bytes: int) -> None:
        self.traffic.cache.set_max_bytes(max_bytes)
        assert self.traffic.cache.status().max_bytes == max_bytes

    @precondition(lambda self: self.limited is Limited.ALL)
    @rule()
    def clear(self) -> None:
        self.traffic.cache.clear()
        assert self.traffic.cache.status().bytes == 0
        for _, match in self.held:
            self.traffic.cache.release(match)
        self.held.clear()

    @invariant()
    def the_tree_is_sound_and_within_its_limits(self) -> None:
        if not hasattr(self, "traffic"):
            return
        self.traffic.cache.check()
        status = self.traffic.cache.status()
        assert self.held or status.bytes <= status.max_bytes
        assert self.held or status.arrays <= status.max_arrays
        assert status.max_entries != 0 or status.entries == 0

    @invariant()
    def what_is_pinned_stays_on_its_path(self) -> None:
        for prompt, match in getattr(self, "held", ()):
            if match.pinned is not None and match.pinned.parent is not None:
                common = self.traffic.cache.known(token_ids(prompt))
                assert common >= match.length

    @invariant()
    def what_sessions_hold_is_there_while_there_is_memory(self) -> None:
        if not hasattr(self, "traffic") or self.limited is Limited.ALL:
            return
        for holder, leaves in self.model.leaves.items():
            prefixes = {leaf[:end] for leaf in leaves for end in range(1, len(leaf) + 1)}
            assert self.traffic.cache.held(holder)[0] == len(prefixes)
            for leaf in leaves:
                assert self.traffic.cache.peek(token_ids([*leaf, 9])) == len(leaf)

    @invariant()
    def entries_add_up_to_the_status(self) -> None:
        if not hasattr(self, "traffic"):
            return
        entries, status = self.traffic.cache.entries(), self.traffic.cache.status()
        assert sum(entry.own_bytes for entry in entries) == status.bytes
        assert sum(entry.own_tokens for entry in entries) == status.tokens
        assert sum(entry.live_of is not None for entry in entries) == status.live_leaves
        assert sum(entry.has_checkpoint for entry in entries) == status.checkpoints

    def draw_prompt(self, data: st.DataObject) -> list[int]:
        prompt = data.draw(st.sampled_from(self.prompts))
        return prompt[: data.draw(st.integers(0, len(prompt)))]

    def teardown(self) -> None:
        for _, match in getattr(self, "held", ()):
            self.traffic.cache.release(match)
            self.traffic.cache.check()


def machine(kind: CacheKind, limited: Limited) -> type:
    made = type(f"{kind.value}_{limited.value}", (Machine,), {"kind": kind, "limited": limited})
    made.TestCase.settings = settings(
        max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
    )
    return made.TestCase


TestSliceableWithoutLimits = machine(CacheKind.SLICEABLE, Limited.NOTHING)
TestSliceableWithLimitedEntries = machine(CacheKind.SLICEABLE, Limited.ENTRIES)
TestSliceableWithLimits = machine(CacheKind.SLICEABLE, Limited.ALL)
TestCheckpointedWithoutLimits = machine(CacheKind.CHECKPOINTED, Limited.NOTHING)
TestCheckpointedWithLimitedEntries = machine(CacheKind.CHECKPOINTED, Limited.ENTRIES)
TestCheckpointedWithLimits = machine(CacheKind.CHECKPOINTED, Limited.ALL)
TestUncacheable = machine(CacheKind.UNCACHEABLE, Limited.ALL)
