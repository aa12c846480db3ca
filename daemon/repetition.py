"""Whether an answer has begun to say the same for ever. Pure: it knows tokens, nothing else.

Small models fall into loops, and without a limit one of those holds the machine until the context
is full. What is written on purpose repeats itself too, as tables and padded lists do; so only a
run is taken for a loop that is far longer, both in tokens and in turns, than anybody wants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MAX_PERIOD = 256
MIN_PERIODS = 32
MIN_TOKENS = 2_048

LIMITED_TOKENS = 8_192
"""As `MIN_TOKENS`, for a client that set a limit itself: it means to get as much as that."""

EVERY_TOKENS = 128
"""How often an answer is looked at: a look costs less than a millisecond."""


def is_endless(tokens: Sequence[int], *, is_limited: bool) -> bool:
    """Whether `tokens` end in a run of one period; looks each EVERY_TOKENS tokens only."""
    least = LIMITED_TOKENS if is_limited else MIN_TOKENS
    if len(tokens) < least or len(tokens) % EVERY_TOKENS:
        return False
    return repeats(tokens, least)


def repeats(tokens: Sequence[int], least: int) -> bool:
    """Whether the last `least` tokens, and as many as MIN_PERIODS are, have one period."""
    window = max(least, MAX_PERIOD * MIN_PERIODS)
    tail = np.asarray(tokens[-window:], dtype=np.int32)
    before = tail[-1 - MAX_PERIOD : -1][::-1]
    periods = np.flatnonzero(before == tail[-1]) + 1
    return any(_has_period(tail, int(period), least) for period in periods)


def _has_period(tail: npt.NDArray[np.int32], period: int, least: int) -> bool:
    run = max(least, period * MIN_PERIODS)
    if len(tail) < run:
        return False
    return bool(np.array_equal(tail[-run + period :], tail[-run:-period]))
