"""A prompt on its way through its session: what is captured of it, and what it opens and leaves.

Where to capture is the policy's decision; here it is asked, once a prompt's reading begins, with
what it has to know: whether the prompt opens its session, and which forks others wait for. Runs on
the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.policies import CheckpointPolicy, Reading
from daemon.sessions import FORK_TOKENS, Sessions
from daemon.turns import Phase, Turn
from mlx_backend.messages import CacheKind


class Planning:
    """`capture` stores what a row holds right at the start of its reading."""

    def __init__(
        self,
        policy: CheckpointPolicy,
        kind: CacheKind,
        cache: PrefixCache,
        sessions: Sessions,
        capture: Callable[[Turn, int, EntryKind], None],
    ) -> None:
        self._policy = policy
        self._kind = kind
        self._cache = cache
        self._sessions = sessions
        self._capture = capture

    def began(self, turn: Turn, common: int) -> None:
        """Decide what is captured of it; `turn.stops` are the forks that others wait for.

        `common`: how many of its tokens are in the tree, restored or not.
        """
        reading = Reading(
            turn.position,
            turn.request.prompt,
            self._kind,
            common=common,
            awaited=tuple(turn.stops),
            is_opening=self._opens_session(turn, common),
        )
        plan = self._policy.plan(reading)
        turn.stops = {stop.offset: stop.kind for stop in plan.stops}
        turn.keeps_end = plan.keeps_end
        if plan.at_start is not None:
            self._capture(turn, turn.position, plan.at_start)

    def ended(self, turn: Turn, now: float, *, is_cancelled: bool) -> None:
        """Its session has one less running; called before its phase says so."""
        was_unread = turn.phase is not Phase.DECODING and not turn.outputs
        self._sessions.end(
            turn.session,
            turn.usage,
            now,
            is_cancelled=is_cancelled,
            reopens=was_unread and bool(turn.opens_session),
        )

    def _opens_session(self, turn: Turn, common: int) -> bool:
        """Whether this prompt opens its session; a turn that begins again keeps its answer."""
        if turn.opens_session is None:
            shared = common - turn.request.prompt.marks.head_end
            match = turn.match if shared >= FORK_TOKENS else None
            parent = (match.holder or match.conversation) if match is not None else ""
            turn.opens_session = self._sessions.begin(turn.session, parent or None)
            if turn.match is not None and turn.session.is_anonymous and turn.holder is not None:
                self._cache.take_over(turn.match, turn.holder, self._sessions.is_left)
        return turn.opens_session
