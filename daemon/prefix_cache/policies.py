"""Which offsets of a prompt become entries: by the two options, or by a function of the user's.

A policy plans one prompt when its reading starts. What it plans is best effort: the tree may have
it already, or have no room for it. Forks that other prompts wait for are added to every plan,
since without them those would read the same tokens again.

What is not planned lives in the session's live leaf only, and goes with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import Protocol, TypeAlias

from daemon.prefix_cache.checkpoints import (
    EntryKind,
    PromptEnd,
    Stop,
    checkpoint_offsets,
    distinct_stops,
)
from mlx_backend.messages import CacheKind, Marks, Prompt, TokenIds

log = logging.getLogger(__name__)

MINIMUM_GAP = 16

OffsetsFunction: TypeAlias = Callable[[int, TokenIds, bool, Marks], Iterable[int]]
"""`(start, prompt, opening, marks) → offsets` where the state is captured.

`start` tokens were restored, `prompt` are all its ids (read-only), `opening` says whether it opens
its session, `marks` where it has joints. Offsets outside (start, len(prompt) - 1] are ignored.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt whose reading starts; see `checkpoint_offsets` for the words."""

    start: int
    prompt: Prompt
    cache_kind: CacheKind
    common: int = 0
    awaited: tuple[int, ...] = ()
    is_opening: bool = True

    @property
    def last(self) -> int:
        return len(self.prompt) - 1

    @property
    def gap(self) -> int:
        return 1 if self.cache_kind is CacheKind.SLICEABLE else MINIMUM_GAP


@dataclass(frozen=True, slots=True)
class Plan:
    """`stops`: where to capture entries. `at_start`: what the restored state itself is to be.

    `keeps_end`: whether the turn's end, or how far a cancelled one came, becomes an entry too.
    """

    stops: tuple[Stop, ...]
    at_start: EntryKind | None
    keeps_end: bool


class CheckpointPolicy(Protocol):
    def plan(self, reading: Reading) -> Plan: ...


@dataclass(frozen=True, slots=True)
class ByOptions:
    """The ends of every prompt, or of those that open a session and multiples of an interval."""

    prompt_end: PromptEnd = PromptEnd.EVERY
    interval: int | None = None

    def plan(self, reading: Reading) -> Plan:
        stops = checkpoint_offsets(
            reading.start,
            reading.prompt,
            cache_kind=reading.cache_kind,
            common=reading.common,
            awaited=reading.awaited,
            opening=reading.is_opening,
            prompt_end=self.prompt_end,
            interval=self.interval,
            minimum_gap=MINIMUM_GAP,
        )
        keeps_all = self.prompt_end is PromptEnd.EVERY
        is_there = reading.start > 0 and reading.last - reading.start < reading.gap
        at_start = EntryKind.PROMPT_END if is_there and (keeps_all or reading.is_opening) else None
        return Plan(stops, at_start, keeps_end=keeps_all)


class ByFunction:
    """What a function of the user's says. What it cannot say is planned by the default."""

    def __init__(self, function: OffsetsFunction) -> None:
        self._function = function
        self._has_failed = False

    def plan(self, reading: Reading) -> Plan:
        if reading.cache_kind is CacheKind.UNCACHEABLE:
            return Plan((), None, keeps_end=False)
        try:
            offsets = self._offsets(reading)
        except Exception:
            if not self._has_failed:
                log.exception("the checkpoint policy failed; the default is used where it does")
            self._has_failed = True
            return ByOptions().plan(reading)
        stops = [Stop(offset, _kind(offset, reading.prompt)) for offset in offsets]
        stops += [Stop(offset, EntryKind.FORK) for offset in reading.awaited]
        kept = distinct_stops(stops, reading.start, reading.last, minimum_gap=reading.gap)
        return Plan(kept, None, keeps_end=False)

    def _offsets(self, reading: Reading) -> list[int]:
        tokens = reading.prompt.tokens.view()
        tokens.flags.writeable = False
        said = self._function(reading.start, tokens, reading.is_opening, reading.prompt.marks)
        most = len(reading.prompt) + 1
        offsets = [index(offset) for offset in islice(said, most)]
        if len(offsets) == most:
            raise ValueError(f"more offsets than the prompt's {most - 1} tokens")
        return offsets


def _kind(offset: int, prompt: Prompt) -> EntryKind:
    """How long an entry stays that a function wants: by the joint it lies at, if it does."""
    marks = prompt.marks
    joints = {
        marks.head_end: EntryKind.HEAD,
        marks.last_user_end: EntryKind.USER_END,
        marks.stable_end: EntryKind.STABLE_END,
        len(prompt) - 1: EntryKind.PROMPT_END,
    }
    return joints.get(offset, EntryKind.INTERVAL)
