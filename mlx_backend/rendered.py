"""Rendered prompts to ids: one beginning-of-text token, and of a long conversation only the end.

A prompt that goes on from the conversation's last one is compared with it as text; what both
begin with is not even cut into pieces again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mlx_backend.encoded import NOTHING, Encoded
from mlx_backend.interface import ShouldStop, never
from mlx_backend.memo import Memo
from mlx_backend.messages import MessageStart, TokenIds, token_ids
from mlx_backend.pieces import PieceEncoder
from mlx_backend.places import Opening, TokenPlaces, Traced, Write, watched
from mlx_backend.recall import Told
from mlx_backend.splices import Plan, Splicer

_MEMO_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Turn:
    """A conversation's last prompt, where its messages begin, and what was spliced into it."""

    encoded: Encoded
    openings: tuple[Opening, ...] = ()
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """A prompt's text and ids, and where its messages begin."""

    text: str
    ids: TokenIds
    starts: tuple[MessageStart, ...]
    plan: Plan


_NOTHING = Turn(Encoded("", NOTHING))


@dataclass(frozen=True, slots=True)
class Beginning:
    """The token that every prompt begins with exactly once; None if the model wants none."""

    bos_id: int | None

    def once(self, ids: TokenIds) -> TokenIds:
        """The ids behind exactly one beginning."""
        if self.bos_id is None:
            return ids
        others = np.flatnonzero(ids != self.bos_id)
        count = int(others[0]) if len(others) else len(ids)
        return ids if count == 1 else np.concatenate([token_ids([self.bos_id]), ids[count:]])


class RenderedEncoder:
    """Encodes what a template rendered. Thread-safe.

    `bytes_of` gives the bytes that a token stands for.
    """

    def __init__(
        self,
        pieces: PieceEncoder,
        beginning: Beginning,
        splicer: Splicer,
        bytes_of: Callable[[int], bytes],
    ) -> None:
        self.pieces = pieces
        self._splicer = splicer
        self._bytes_of = bytes_of
        self._beginning = beginning
        self._last: Memo[Hashable, Turn] = Memo(_MEMO_BYTES, _turn_bytes)

    def encode(self, rendered: str, answers: Sequence[Told] = ()) -> TokenIds:
        splices = self._splicer.plan(rendered, answers).splices if answers else ()
        return self._beginning.once(self.pieces.encode(rendered, splices))

    def encode_turn(
        self,
        conversation: Hashable,
        traced: Traced,
        write: Write,
        answers: Sequence[Told] = (),
        should_stop: ShouldStop = never,
    ) -> RenderedTurn:
        """Render by `write` and encode a prompt that probably continues its conversation's last
        one. `answers` are those that `traced` has."""
        before = self._last.get(conversation) or _NOTHING
        first = max(0, len(before.openings) - 2) if self.pieces.by_pieces else 0
        reading = watched(traced.messages, first, write)
        shared = before.encoded.text_shared_with(reading.text)
        plan = self._splicer.plan(reading.text, answers, before.plan, shared)
        encoded = self.pieces.continue_from(before.encoded, reading.text, plan.splices, should_stop)
        known = _unchanged(before.openings, encoded.bounds[0][0])
        if first >= max(1, len(known)):
            reading = watched(traced.messages, 0, write)
        ids = self._beginning.once(encoded.ids)
        shift = len(ids) - len(encoded.ids)
        earlier = [(o.characters, o.starts[-1].offset - shift) for o in known[-1:] if o.starts]
        joints = [joint for joint in before.encoded.joints if joint[0] <= encoded.bounds[0][0]]
        bounds = sorted({*earlier, *joints, *encoded.joints, *encoded.bounds})
        places = TokenPlaces(reading.text, encoded.ids, bounds, self._bytes_of, shift)
        openings = traced.openings(reading, places, known)
        self._last.put(conversation, Turn(encoded, openings, plan))
        starts = tuple(chain.from_iterable(opening.starts for opening in openings))
        return RenderedTurn(reading.text, ids, starts, plan)


def _unchanged(openings: Sequence[Opening], characters: int) -> tuple[Opening, ...]:
    """Those of messages that end within the first `characters`, which two prompts share."""
    return tuple(opening for opening in openings if opening.characters <= characters)[:-1]


def _turn_bytes(key: Hashable, turn: Turn) -> int:
    encoded = turn.encoded
    answers = 0 if turn.plan is None else turn.plan.nbytes
    places = 200 * (len(encoded.bounds) + len(turn.openings))
    return sys.getsizeof(encoded.text) + encoded.ids.nbytes + places + answers + 4096
