"""The time a chat template sees: the day on which its conversation was opened.

Some templates print a date, a few the time of day. Read anew for each request it would change in
the middle of a conversation and cost all of its tokens, so it is cut to the day (conversations of
one day share their head) and kept for as long as the conversation is remembered: by the next
process, too, since the conversation may go on there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time

from mlx_backend.digests import number_of
from mlx_backend.journal import NO_NOTES, Notes, Value
from mlx_backend.memo import Memo

_MEMO_CONVERSATIONS = 8192


class ConversationClock:
    """Pins a day to each conversation, known by what it opens with. Thread-safe."""

    KIND = "day"  # of its notes

    def __init__(self, now: Callable[[], datetime] = datetime.now, notes: Notes = NO_NOTES) -> None:
        self._now = now
        self._notes = notes
        self._days: Memo[int, datetime] = Memo(_MEMO_CONVERSATIONS)

    def restore(self, value: Value) -> None:
        """Take back what was noted. Raises as odd data does."""
        day = datetime.combine(date.fromisoformat(value["day"]), time())
        self._days.put(int(value["conversation"]), day)

    def day(self, conversation: int, *, is_opening: bool) -> datetime:
        """The conversation's day; an opening prompt begins it anew once the day has passed."""
        today = datetime.combine(self._now().date(), time())
        pinned = self._days.get(conversation)
        if pinned is None or (is_opening and pinned != today):
            self._days.put(conversation, today)
            pinned = today
        day = pinned.date().isoformat()
        told = {"conversation": conversation, "day": day}
        self._notes.add(self.KIND, number_of(conversation, day), lambda: told)
        return pinned
