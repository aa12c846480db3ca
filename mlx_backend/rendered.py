"""Rendered prompts to ids: one beginning-of-text token, and of a long conversation only the end.

A prompt that goes on from the conversation's last one is compared with it as text; what both
begin with is not even cut into pieces again.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable

import numpy as np

from mlx_backend.memo import Memo
from mlx_backend.messages import TokenIds, token_ids
from mlx_backend.pieces import NOTHING, Encoded, PieceEncoder

_MEMO_BYTES = 32 << 20
_EMPTY = Encoded("", NOTHING)


class RenderedEncoder:
    """Encodes what a template rendered. Thread-safe.

    `bos_id` is the token that every prompt begins with exactly once, None if the model wants none.
    """

    def __init__(self, pieces: PieceEncoder, bos_id: int | None) -> None:
        self.pieces = pieces
        self._bos_id = bos_id
        self._last: Memo[Hashable, Encoded] = Memo(_MEMO_BYTES, _encoded_bytes)

    def encode(self, rendered: str) -> TokenIds:
        return self.begun_once(self.pieces.encode(rendered))

    def encode_turn(self, rendered: str, conversation: Hashable) -> TokenIds:
        """The same, for a prompt that probably continues the last one of its conversation."""
        encoded = self.pieces.continue_from(self._last.get(conversation) or _EMPTY, rendered)
        self._last.put(conversation, encoded)
        return self.begun_once(encoded.ids)

    def begun_once(self, ids: TokenIds) -> TokenIds:
        """The ids behind exactly one beginning-of-text token, if the model wants one."""
        if self._bos_id is None:
            return ids
        others = np.flatnonzero(ids != self._bos_id)
        count = int(others[0]) if len(others) else len(ids)
        return ids if count == 1 else np.concatenate([token_ids([self._bos_id]), ids[count:]])


def _encoded_bytes(key: Hashable, encoded: Encoded) -> int:
    return sys.getsizeof(encoded.text) + encoded.ids.nbytes + 4096
