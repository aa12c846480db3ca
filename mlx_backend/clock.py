"""The time a chat template sees: the day on which its conversation was opened.

Some templates print a date, a few the time of day. Read anew for each request it would change in
the middle of a conversation and cost all of its tokens, so it is cut to the day (conversations of
one day share their head) and kept for as long as the conversation is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime, time

from mlx_backend.memo import Memo

_MEMO_CONVERSATIONS = 8192


class ConversationClock:
    """Pins a day to each conversation, known by what it opens with. Thread-safe."""

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        self._now = now
        self._days: Memo[Hashable, datetime] = Memo(_MEMO_CONVERSATIONS)

    def day(self, conversation: Hashable, *, is_opening: bool) -> datetime:
        """The conversation's day; an opening prompt begins it anew once the day has passed."""
        today = datetime.combine(self._now().date(), time())
        pinned = self._days.get(conversation)
        if pinned is None or (is_opening and pinned != today):
            self._days.put(conversation, today)
            return today
        return pinned
