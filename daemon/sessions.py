"""Sessions: named conversations, what they have cost, and how long their last state is kept.

A session is a label and a hint for retention; token ids alone decide what is reused. It opens
with its first request, named or anonymous (then it is that request's own), and is forgotten once
it has been idle for long enough or too many others were used since: its live leaf goes with it.
An anonymous conversation is a chain of sessions, each of which takes over what the one before it
left; where there are too many, anonymous ones go first.
What a session with a running request holds is never let go for others. Belongs to the engine's
thread; time is passed in. Where a live leaf is stored is the prefix cache's affair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from daemon.errors import NotFound
from daemon.generation import GenerationRequest, Usage
from daemon.status import SessionStatus

FORK_TOKENS = 16
"""Sharing less than this beyond the head is an accident of the template, not a fork."""

NEVER = float("-inf")

Why: TypeAlias = Literal["idle", "reset", "sessions"]


class LiveLeaves(Protocol):
    """The part of the prefix cache that keeps what sessions hold."""

    def let_go(self, holder: str, why: Why) -> None: ...

    def held(self, holder: str) -> tuple[int, int]:
        """Tokens and own bytes of all live leaves of `holder`."""


@dataclass(slots=True, eq=False)
class Session:
    """`is_fresh`: none of its prompts was read to its end yet, nor is the first one on its way.

    `epoch` grows whenever its state is forgotten: a turn of an earlier epoch leaves nothing.
    `held`: tokens and own bytes of its live leaves, as `weighed` at that time.
    """

    id: str
    label: str
    opened: float
    used: float
    is_anonymous: bool = False
    family: str | None = None
    parent: str | None = None
    is_fresh: bool = True
    epoch: int = 0
    held: tuple[int, int] = (0, 0)
    weighed: float = NEVER
    running: int = 0
    turns: int = 0
    cancelled: int = 0
    prompt: int = 0
    reused: int = 0
    read: int = 0
    generated: int = 0


class Sessions:
    """The open sessions by id, the longest unused first."""

    def __init__(self, *, max_sessions: int = 64, idle_seconds: float = 3600.0) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._leaves: LiveLeaves | None = None

    def attach(self, leaves: LiveLeaves | None) -> None:
        """Keep live leaves there from now on, or nowhere. What was kept elsewhere is lost."""
        self._leaves = leaves
        for session in self._sessions.values():
            _forget(session)

    def open(self, request: GenerationRequest, now: float) -> Session:
        """The session of a request that has arrived, opened if need be."""
        id = request.session or f"anon-{request.id.removeprefix('req_')[:12]}"
        session = self._sessions.get(id)
        if session is None:
            label = "anonymous" if request.is_anonymous else id
            session = Session(id, label, now, now, is_anonymous=request.is_anonymous)
            self._sessions[id] = session
        session.family = session.family or request.family
        session.running += 1
        self._touch(session, now)
        self._make_room()
        return session

    def begin(self, session: Session, forked_from: str | None) -> bool:
        """A prompt's reading begins; whether it opens its session.

        `forked_from`: the session whose tokens the prompt goes on with, if it does.
        """
        if not session.is_fresh:
            return False
        session.is_fresh = False
        if forked_from is not None and forked_from != session.id and session.parent is None:
            self._adopt(session, forked_from)
        return True

    def has(self, id: str) -> bool:
        return id in self._sessions

    def is_left(self, id: str) -> bool:
        """Whether it is anonymous and its request has ended: nobody can come back by its name."""
        session = self._sessions.get(id)
        return session is not None and session.is_anonymous and not session.running

    def end(
        self, session: Session, usage: Usage, now: float, *, is_cancelled: bool, reopens: bool
    ) -> None:
        """A request has ended. `reopens`: it was to open the session, but was never read."""
        session.running -= 1
        session.turns += 1
        session.cancelled += is_cancelled
        session.prompt += usage.prompt
        session.reused += usage.reused
        session.read += usage.read
        session.generated += usage.generated
        session.is_fresh = session.is_fresh or reopens
        session.weighed = NEVER
        if self._sessions.get(session.id) is session:
            self._touch(session, now)
            self._make_room()

    def next_expiry(self) -> float | None:
        """When the next session will have been idle for too long, if none is used until then."""
        session = next(self._idle(), None)
        return None if session is None else session.used + self._idle_seconds

    def expire(self, now: float) -> None:
        """Forget the sessions that have been idle for too long."""
        for session in list(self._idle()):
            if session.used + self._idle_seconds > now:
                return
            self._close(session, "idle")

    def reset(self, id: str) -> None:
        """Forget a session's state and keep its counters. Raises NotFound."""
        session = self._session(id)
        self._let_go(session, "reset")

    def delete(self, id: str) -> None:
        """Forget a session altogether; what it runs goes on. Raises NotFound."""
        self._close(self._session(id), "reset")

    def statuses(self, now: float, max_age: float = 0.0) -> tuple[SessionStatus, ...]:
        """All open sessions, the last used at the end.

        What others did to their live leaves may be `max_age` seconds old: many sessions with long
        histories take long to weigh.
        """
        return tuple(self._status(session, now, max_age) for session in self._sessions.values())

    def status(self, id: str, now: float) -> SessionStatus:
        """One session. Raises NotFound."""
        return self._status(self._session(id), now)

    def _status(self, session: Session, now: float, max_age: float = 0.0) -> SessionStatus:
        if now - session.weighed >= max_age:
            session.held = (0, 0) if self._leaves is None else self._leaves.held(session.id)
            session.weighed = now
        tokens, own_bytes = session.held
        return SessionStatus(
            id=session.id,
            label=session.label,
            family=session.family,
            parent=session.parent,
            turns=session.turns,
            cancelled=session.cancelled,
            prompt=session.prompt,
            reused=session.reused,
            read=session.read,
            generated=session.generated,
            live_tokens=tokens,
            live_bytes=own_bytes,
            running=session.running,
            age_seconds=now - session.opened,
            idle_seconds=0.0 if session.running else now - session.used,
        )

    def _session(self, id: str) -> Session:
        session = self._sessions.get(id)
        if session is None:
            raise NotFound(f"There is no session `{id}`.", code="session_not_found")
        return session

    def _adopt(self, session: Session, parent: str) -> None:
        """Parent and child are of one family; a family without a name has its eldest's."""
        session.parent = parent
        elder = self._sessions.get(parent)
        if elder is not None:
            elder.family = elder.family or session.family or elder.id
        session.family = session.family or (elder.family if elder is not None else parent)

    def _idle(self) -> Iterator[Session]:
        """Sessions without a running request, the longest unused first."""
        return (session for session in self._sessions.values() if not session.running)

    def _touch(self, session: Session, now: float) -> None:
        session.used = now
        self._sessions.move_to_end(session.id)

    def _make_room(self) -> None:
        surplus = len(self._sessions) - self._max_sessions
        if surplus > 0:
            by_worth = sorted(self._idle(), key=lambda session: not session.is_anonymous)
            for session in by_worth[:surplus]:
                self._close(session, "sessions")

    def _close(self, session: Session, why: Why) -> None:
        del self._sessions[session.id]
        self._let_go(session, why)

    def _let_go(self, session: Session, why: Why) -> None:
        _forget(session)
        if self._leaves is not None:
            self._leaves.let_go(session.id, why)


def _forget(session: Session) -> None:
    session.epoch += 1
    session.weighed = NEVER
    session.is_fresh = True
