"""Rendered prompts to ids: one beginning-of-text token, and of a long conversation only the end.

A prompt that goes on from the conversation's last one is compared with it as text; what both
begin with is not even cut into pieces again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np

from mlx_backend.interface import ShouldStop, never
from mlx_backend.memo import Memo
from mlx_backend.messages import MessageStart, RenderedAs, TokenIds, token_ids
from mlx_backend.pieces import NOTHING, Encoded, PieceEncoder
from mlx_backend.places import Opening, TokenPlaces, Traced, Write, watched

_MEMO_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Turn:
    """A conversation's last prompt, and where its messages begin."""

    encoded: Encoded
    openings: tuple[Opening, ...] = ()


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """A prompt's text and ids, and where its messages begin."""

    text: str
    ids: TokenIds
    starts: tuple[MessageStart, ...]


_NOTHING = Turn(Encoded("", NOTHING))


class RenderedEncoder:
    """Encodes what a template rendered. Thread-safe.

    `bos_id` is the token that every prompt begins with exactly once, None if the model wants none;
    `bytes_of` gives the bytes that a token stands for.
    """

    def __init__(
        self, pieces: PieceEncoder, bos_id: int | None, bytes_of: Callable[[int], bytes]
    ) -> None:
        self.pieces = pieces
        self._bytes_of = bytes_of
        self._bos_id = bos_id
        self._last: Memo[Hashable, Turn] = Memo(_MEMO_BYTES, _turn_bytes)

    def encode(self, rendered: str) -> TokenIds:
        return self.begun_once(self.pieces.encode(rendered))

    def encode_turn(
        self,
        conversation: Hashable,
        traced: Traced,
        write: Write,
        should_stop: ShouldStop = never,
    ) -> RenderedTurn:
        """Render by `write` and encode a prompt that probably continues its conversation's last
        one."""
        before = self._last.get(conversation) or _NOTHING
        first = max(0, len(before.openings) - 2) if self.pieces.by_pieces else 0
        reading = watched(traced.messages, first, write)
        encoded = self.pieces.continue_from(before.encoded, reading.text, should_stop)
        known = _unchanged(before.openings, encoded.bounds[0][0])
        if first >= max(1, len(known)):
            reading = watched(traced.messages, 0, write)
        ids = self.begun_once(encoded.ids)
        bounds = sorted({*encoded.joints, *encoded.bounds})
        places = TokenPlaces(
            reading.text, encoded.ids, bounds, self._bytes_of, len(ids) - len(encoded.ids)
        )
        openings = traced.openings(reading, places, known)
        self._last.put(conversation, Turn(encoded, openings))
        starts = tuple(chain.from_iterable(opening.starts for opening in openings))
        return RenderedTurn(reading.text, ids, starts)

    def begun_once(self, ids: TokenIds) -> TokenIds:
        """The ids behind exactly one beginning-of-text token, if the model wants one."""
        if self._bos_id is None:
            return ids
        others = np.flatnonzero(ids != self._bos_id)
        count = int(others[0]) if len(others) else len(ids)
        return ids if count == 1 else np.concatenate([token_ids([self._bos_id]), ids[count:]])


def rendered_as(text: str) -> RenderedAs:
    return RenderedAs(len(text), blake2b(text.encode(), digest_size=16).digest())


def _unchanged(openings: Sequence[Opening], characters: int) -> tuple[Opening, ...]:
    """Those of messages that end within the first `characters`, which two prompts share."""
    return tuple(opening for opening in openings if opening.characters <= characters)[:-1]


def _turn_bytes(key: Hashable, turn: Turn) -> int:
    encoded = turn.encoded
    places = 200 * (len(encoded.bounds) + len(turn.openings))
    return sys.getsizeof(encoded.text) + encoded.ids.nbytes + places + 4096
