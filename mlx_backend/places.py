"""Where in a rendered prompt each message of the request begins.

A template says so itself: while it writes, piece by piece, it reads one message after another, so
a message begins where the template stood when it last began to read it. (It may have looked at
all of them before; who reads only a role is looking around.) Of a conversation that goes on, what
is known of its earlier messages is kept, and only the new ones are watched.

Characters become tokens by the bounds of the pieces that were encoded, and inside a piece by the
bytes of its first tokens. Where a template cannot be watched, no message has a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

from mlx_backend.control import BREAK, as_written
from mlx_backend.conversation import Origins
from mlx_backend.messages import MessageStart, TokenIds
from mlx_backend.traits import Message

Write: TypeAlias = Callable[[Sequence[Message]], Iterable[str]]
"""Renders messages, piece by piece."""

_LOOKING_AROUND = frozenset({"role"})
_NEEDLE = 64  # characters of a content that are looked for in what the template made of it


@dataclass(frozen=True, slots=True)
class Opening:
    """Where the template begins to write one of its messages, and the client's messages in it."""

    characters: int
    starts: tuple[MessageStart, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A rendered prompt, and where it stood each time the template turned to a message that was
    watched, as (message, characters); a message's readings in a row count once."""

    text: str
    turns: tuple[tuple[int, int], ...]
    first: int  # messages from here on were watched

    def begins(self, count: int) -> dict[int, int]:
        """The characters where each of `count` messages begins, as far as it was watched.

        Found from the last message backwards: before the last one's turn comes the last turn of
        the one before it, and so on; a look at all of them in advance is never the last.
        """
        found: dict[int, int] = {}
        end = len(self.turns)
        for message in range(count - 1, self.first - 1, -1):
            for place in range(end - 1, -1, -1):
                if self.turns[place][0] == message:
                    found[message], end = self.turns[place][1], place
                    break
        return found


def watched(messages: Sequence[Message], first: int, write: Write) -> Reading:
    """What `write` makes of `messages`, in pieces, with those from `first` on being watched."""
    pieces: list[str] = []
    seen: list[tuple[int, int]] = []

    def on_read(message: int) -> None:
        if not seen or seen[-1][0] != message:
            seen.append((message, len(pieces)))

    shown = [*messages[:first]]
    shown += (_Watched(messages[i], i, on_read) for i in range(first, len(messages)))
    for piece in write(shown):
        pieces.append(piece)  # noqa: PERF402  (`on_read` counts them on the way)
    lengths = list(accumulate(map(len, pieces), initial=0))
    turns = tuple((message, lengths[count]) for message, count in seen)
    return Reading("".join(pieces), turns, first)


class _Watched(dict[str, Any]):
    """A message that tells when one of its fields is read."""

    __slots__ = ("_index", "_on_read")

    def __init__(self, message: Message, index: int, on_read: Callable[[int], None]) -> None:
        super().__init__(message)
        self._index = index
        self._on_read = on_read

    def __getitem__(self, name: str) -> Any:
        if name not in _LOOKING_AROUND:
            self._on_read(self._index)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in _LOOKING_AROUND:
            self._on_read(self._index)
        return super().get(name, default)


@dataclass(slots=True)
class TokenPlaces:
    """Turns characters of a prompt to tokens, in ascending order.

    `bounds` are places (characters, ids) where a piece begins. `shift` is the number of tokens
    that the prompt has before `ids`.
    """

    text: str
    ids: TokenIds
    bounds: Sequence[tuple[int, int]]
    bytes_of: Callable[[int], bytes]
    shift: int
    _next: int = 0
    _characters: int = 0
    _tokens: int = 0

    def token_at(self, characters: int) -> int:
        """The token in which the text from `characters` on begins."""
        while self._next < len(self.bounds) and self.bounds[self._next][0] <= characters:
            self._characters, self._tokens = self.bounds[self._next]
            self._next += 1
        end = self.bounds[self._next][1] if self._next < len(self.bounds) else len(self.ids)
        text = self.text[self._characters : characters].replace(BREAK, "")
        left = len(as_written(text).encode())
        while left and self._tokens < end:
            size = len(self.bytes_of(int(self.ids[self._tokens])))
            if not 0 < size <= left:
                break
            left -= size
            self._tokens += 1
        else:
            self._characters = characters
        return max(0, self._tokens + self.shift)


@dataclass(frozen=True, slots=True)
class Traced:
    """A conversation as the template gets it, with the client's messages in each of its own, and
    the client's roles."""

    messages: Sequence[Message]
    origins: Sequence[Origins]
    roles: Sequence[str]

    def openings(
        self, reading: Reading, places: TokenPlaces, known: Sequence[Opening]
    ) -> tuple[Opening, ...]:
        """`known`, and the openings of the messages behind those."""
        begins, text = reading.begins(len(self.messages)), reading.text
        found = list(known)
        for message in range(len(known), len(self.messages)):
            begin = begins.get(message)
            if begin is None:
                found.append(Opening(found[-1].characters if found else 0, ()))
                continue
            end = begins.get(message + 1, len(text))
            spots = self._spots(message, text, begin, end)
            if message == 1 and (head := self._late_head(text, found[0].characters, begin, end)):
                found[0] = replace(found[0], starts=self._starts([(0, begin)], places))
                spots = [(index, max(spot, head)) for index, spot in spots]
            found.append(Opening(begin, self._starts(spots, places)))
        return tuple(found)

    def _starts(
        self, spots: Sequence[tuple[int, int]], places: TokenPlaces
    ) -> tuple[MessageStart, ...]:
        return tuple(
            MessageStart(places.token_at(spot), index, self.roles[index]) for index, spot in spots
        )

    def _spots(self, message: int, text: str, begin: int, end: int) -> list[tuple[int, int]]:
        """Where each of the client's messages begins in what the template wrote between `begin`
        and `end`; one that cannot be found there is left out."""
        origins = self.origins[message]
        spots = [(index, begin) for index, _ in origins[:1]]
        if len(origins) < 2:
            return spots
        content = self.messages[message]["content"]
        stripped = content.lstrip()
        place = text.find(stripped[:_NEEDLE], begin, end)
        if place >= 0:
            start = place - (len(content) - len(stripped))
            spots += [(index, max(begin, start + offset)) for index, offset in origins[1:]]
        return spots

    def _late_head(self, text: str, begin: int, second: int, end: int) -> int:
        """Where the system text ends if the template writes it into the second message, which
        reaches from `second` to `end`; 0 if it does not."""
        head = self.messages[0]
        content = head["content"].strip()
        needle = content[:_NEEDLE]
        if head["role"] != "system" or not needle or text.find(needle, begin, second) >= 0:
            return 0
        place = text.find(needle, second, end)
        return place + len(content) if place >= 0 else 0
