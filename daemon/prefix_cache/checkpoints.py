"""Where to stop and capture while a prompt is being read: a pure function of offsets.

On a sliceable model any offset can be restored later, so what was read needs to be handed over
only once, and where somebody waits for it. On a checkpointed model a row can be restored only
where a checkpoint was taken, so the offsets that later prompts will share have to be foreseen.

Of two offsets less than `minimum_gap` apart the earlier is kept: it serves every prompt that the
later one would serve, at the price of reading a few tokens, and it also serves the prompts that
part in between (the generation tail, for one, is seldom a prefix of the next turn). It takes the
strongest kind of those it stands for, because the kind decides how long it stays.

Whether the tree takes what is captured here is decided in `cache` and `eviction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from mlx_backend.messages import CacheKind, Prompt

RAW_TAIL = 8
"""Last tokens of a prompt without a template that may merge with the text that follows them."""

MESSAGE_SPACING = 4096
"""Tokens read again at most when a prompt leaves a history, read at once, between its messages."""

MOST_SPACINGS = 16
"""A prompt so long that more would fit is captured at larger distances: that many times two, at
most, are the checkpoints within it."""


class EntryKind(StrEnum):
    """What the offset of an entry means in its conversation."""

    HEAD = "head"  # end of system text and tools
    USER_END = "user_end"  # end of the last user message or tool result
    FORK = "fork"  # where prompts are known to part
    STABLE_END = "stable_end"  # as much of the prompt as surely stays when it goes on
    PROMPT_END = "prompt_end"  # all of the prompt but the token that is left to run
    TURN_END = "turn_end"  # prompt and answer
    PARTIAL = "partial"  # as far as a cancelled or running request came
    INTERVAL = "interval"  # a multiple of the configured interval
    MESSAGE_END = "message_end"  # between two messages of a long history

    @property
    def strength(self) -> int:
        """Higher is given up later by a conversation that has to thin itself."""
        return _STRENGTH[self]


_STRENGTH = {
    EntryKind.MESSAGE_END: 0,
    EntryKind.INTERVAL: 1,
    EntryKind.PARTIAL: 2,
    EntryKind.TURN_END: 3,
    EntryKind.PROMPT_END: 4,
    EntryKind.STABLE_END: 5,
    EntryKind.FORK: 6,
    EntryKind.USER_END: 7,
    EntryKind.HEAD: 8,
}


class PromptEnd(StrEnum):
    """Whose prompt's end is captured: each prompt's, or only one that opens a session."""

    EVERY = "every"
    INITIAL = "initial"


@dataclass(frozen=True, slots=True)
class Stop:
    """Read up to `offset` exactly and capture there."""

    offset: int
    kind: EntryKind


def checkpoint_offsets(
    start: int,
    prompt: Prompt,
    *,
    cache_kind: CacheKind,
    common: int = 0,
    awaited: Iterable[int] = (),
    opening: bool = True,
    prompt_end: PromptEnd = PromptEnd.EVERY,
    interval: int | None = None,
    message_spacing: int = MESSAGE_SPACING,
    minimum_gap: int = 16,
) -> tuple[Stop, ...]:
    """Where to capture while reading `prompt` from `start` on: ascending, in (start, len - 1].

    `start` is how much was restored, `common` how much of the prompt lies on a path of the tree
    (beyond `start` it is a fork that nothing can be restored at yet), `awaited` the offsets that
    waiting prompts share with this one, `opening` whether this prompt opens its session. Of a
    prompt whose end is not taken, nothing is but the interval and what others wait for. An
    interval stands in for the ends of messages too.
    """
    if cache_kind is CacheKind.UNCACHEABLE:
        return ()
    last = len(prompt) - 1
    takes_end = opening or prompt_end is PromptEnd.EVERY
    stops = [Stop(offset, EntryKind.FORK) for offset in awaited]
    if cache_kind is CacheKind.SLICEABLE:
        if takes_end:
            stops.append(Stop(last, EntryKind.PROMPT_END))
        else:
            stops.extend(_multiples(interval, start, last))
        return distinct_stops(stops, start, last, minimum_gap=1)
    if takes_end:
        stops.append(Stop(prompt.marks.head_end, EntryKind.HEAD))
        stops.append(Stop(common, EntryKind.FORK))
        stops.extend(_ends(prompt))
        if interval is None:
            spacing = max(message_spacing, (last - start) // MOST_SPACINGS)
            stops.extend(_message_ends(prompt, start, stops, spacing))
    stops.extend(_multiples(interval, start, last))
    return distinct_stops(stops, start, last, minimum_gap=minimum_gap)


def _multiples(interval: int | None, start: int, last: int) -> Iterator[Stop]:
    if interval:
        first = (start // interval + 1) * interval
        yield from (Stop(at, EntryKind.INTERVAL) for at in range(first, last + 1, interval))


def _ends(prompt: Prompt) -> Iterator[Stop]:
    marks, last = prompt.marks, len(prompt) - 1
    yield Stop(marks.last_user_end, EntryKind.USER_END)
    yield Stop(marks.stable_end, EntryKind.STABLE_END)
    yield Stop(last, EntryKind.PROMPT_END)
    if marks.is_raw:
        yield Stop(len(prompt) - RAW_TAIL, EntryKind.STABLE_END)


def _message_ends(
    prompt: Prompt, start: int, foreseen: Sequence[Stop], spacing: int
) -> Iterator[Stop]:
    """So many ends of messages that none lies further than a spacing behind a stop or `start`.

    Each is half a spacing or more behind the stop before it, so there are at most two for each
    spacing; of those that would do, the last one behind which a user speaks: that is where a
    history is taken back to.
    """
    last = len(prompt) - 1
    fixed = {stop.offset for stop in foreseen}
    roles = {message.offset: message.role for message in prompt.messages}
    places = sorted(place for place in fixed | roles.keys() if start < place <= last)
    before, before_user = start, start
    for place, following in pairwise([*places, last]):
        if place in fixed:
            before = place
            continue
        is_worth_it = place - before >= spacing / 2
        if is_worth_it and roles[place] == "user":
            before_user = place
        if is_worth_it and following - before > spacing:
            before = before_user if before_user - before >= spacing / 2 else place
            yield Stop(before, EntryKind.MESSAGE_END)


def distinct_stops(
    stops: Iterable[Stop], start: int, last: int, *, minimum_gap: int
) -> tuple[Stop, ...]:
    """Those in (start, last], ascending, each at least `minimum_gap` after the one before it.

    The gap is kept from `start` too.
    """
    within = [stop for stop in stops if start < stop.offset <= last]
    kept: list[Stop] = []
    for stop in sorted(within, key=lambda stop: (stop.offset, -stop.kind.strength)):
        before = kept[-1] if kept else None
        if stop.offset - (before.offset if before else start) >= minimum_gap:
            kept.append(stop)
        elif before and stop.kind.strength > before.kind.strength:
            kept[-1] = Stop(before.offset, stop.kind)
    return tuple(kept)
