"""The tree against a list of what was stored, with every invariant walked after every step."""

from __future__ import annotations

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

tails = st.lists(st.integers(0, 2), min_size=1, max_size=24)
kinds = st.sampled_from(list(EntryKind))
sessions = st.sampled_from(["a", "b", "c", "anonymous"])


def common_prefix(first: list[int], second: list[int]) -> int:
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


class Model:
    """Every prompt that was ever stored, as a plain list."""

    def __init__(self, kind: CacheKind, minimum_gap: int) -> None:
        self.kind = kind
        self.minimum_gap = minimum_gap
        self.stored: list[list[int]] = []

    def common(self, tokens: list[int]) -> int:
        return max((common_prefix(tokens, stored) for stored in self.stored), default=0)

    def restorable(self, tokens: list[int]) -> int:
        most = len(tokens) - 1
        if self.kind is CacheKind.SLICEABLE:
            return min(most, self.common(tokens))
        lengths = (len(stored) for stored in self._prefixes(tokens))
        return max((length for length in lengths if length <= most), default=0)

    def wants(self, tokens: list[int]) -> bool:
        if self.kind is CacheKind.UNCACHEABLE:
            return False
        if self.kind is CacheKind.SLICEABLE:
            return self.common(tokens) < len(tokens)
        gaps = [len(tokens) - len(stored) for stored in self._prefixes(tokens)]
        return all(gap and gap >= self.minimum_gap for gap in gaps)

    def _prefixes(self, tokens: list[int]) -> list[list[int]]:
        return [stored for stored in self.stored if tokens[: len(stored)] == stored]


class Machine(RuleBasedStateMachine):
    """Without limits the model says exactly what is restored; with limits it says the most."""

    kind: CacheKind
    has_limits: bool

    @initialize(
        gap=st.sampled_from([1, 4]),
        max_entries=st.sampled_from([None, 0, 1, 2, 4]),
        max_bytes=st.sampled_from([2_000, 4_000, 8_000, UNLIMITED]),
        max_arrays=st.sampled_from([4, 12, 400_000]),
    )
    def start(self, gap: int, max_entries: int | None, max_bytes: int, max_arrays: int) -> None:
        limits = {"max_entries": max_entries, "max_bytes": max_bytes, "max_arrays": max_arrays}
        self.traffic = Traffic(
            self.kind,
            minimum_gap=gap,
            checkpoint_bytes=CHECKPOINT_BYTES,
            block_tokens=8,
            **(limits if self.has_limits else {}),
        )
        self.model = Model(self.kind, gap)
        self.prompts: list[list[int]] = [[]]
        self.held: list[tuple[list[int], Match]] = []

    @rule(data=st.data(), tail=tails, kind=kinds, session=sessions)
    def store(self, data: st.DataObject, tail: list[int], kind: EntryKind, session: str) -> None:
        prompt = self.draw_prompt(data) + tail
        wanted = self.traffic.cache.wants(token_ids(prompt), kind)
        stored = self.traffic.store(prompt, kind, session)
        self.prompts.append(prompt)
        if not self.has_limits:
            assert wanted == stored == self.model.wants(prompt)
        if stored:
            self.model.stored.append(prompt)

    @rule(data=st.data(), tail=tails)
    def match(self, data: st.DataObject, tail: list[int]) -> None:
        prompt = self.draw_prompt(data) + tail
        match = self.traffic.match(prompt)
        self.held.append((prompt, match))
        if self.has_limits:
            assert match.length <= self.model.restorable(prompt)
            assert match.common <= self.model.common(prompt)
        else:
            assert match.length == self.model.restorable(prompt)
            assert match.common == self.model.common(prompt)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        prompt, match = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.traffic.cache.release(match)
        self.traffic.cache.release(match)
        assert restored(match, self.kind) == prompt[: match.length], "a snapshot changed"

    @precondition(lambda self: self.held and self.has_limits)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        prompt, match = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.traffic.cache.reject(match)
        assert not match.length or self.traffic.cache.peek(token_ids(prompt)) < match.length
        for other in [held for held in self.held if not self.is_restorable(*held)]:
            self.held.remove(other)
            self.traffic.cache.release(other[1])

    @precondition(lambda self: self.has_limits)
    @rule()
    def clear(self) -> None:
        self.traffic.cache.clear()
        assert self.traffic.cache.status().bytes == 0
        for _, match in self.held:
            self.traffic.cache.release(match)
        self.held.clear()

    @invariant()
    def what_is_pinned_stays_restorable(self) -> None:
        if not hasattr(self, "traffic"):
            return
        self.traffic.cache.check()
        for prompt, match in self.held:
            assert self.is_restorable(prompt, match)

    def is_restorable(self, prompt: list[int], match: Match) -> bool:
        """False once another match of the same state was rejected."""
        if match.pinned is not None and match.pinned.parent is None:
            return False
        return self.traffic.cache.peek(token_ids(prompt)) >= match.length

    def draw_prompt(self, data: st.DataObject) -> list[int]:
        prompt = data.draw(st.sampled_from(self.prompts))
        return prompt[: data.draw(st.integers(0, len(prompt)))]

    def teardown(self) -> None:
        for _, match in getattr(self, "held", ()):
            self.traffic.cache.release(match)
            self.traffic.cache.check()


def machine(kind: CacheKind, has_limits: bool) -> type:
    name = f"{kind.value}_{'limited' if has_limits else 'unlimited'}"
    made = type(name, (Machine,), {"kind": kind, "has_limits": has_limits})
    made.TestCase.settings = settings(
        max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
    )
    return made.TestCase


TestSliceableWithoutLimits = machine(CacheKind.SLICEABLE, False)
TestSliceableWithLimits = machine(CacheKind.SLICEABLE, True)
TestCheckpointedWithoutLimits = machine(CacheKind.CHECKPOINTED, False)
TestCheckpointedWithLimits = machine(CacheKind.CHECKPOINTED, True)
TestUncacheable = machine(CacheKind.UNCACHEABLE, True)
