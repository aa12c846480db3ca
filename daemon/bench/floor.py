"""How few tokens of a prompt a server could read: the measure that reads are counted against.

Floor of a request = max(1, prompt - longest common prefix with any earlier prompt or any earlier
prompt with its output). Where the model's state cannot be cut at will, that prefix is taken back
to the nearest message boundary at or before it. All of it is arithmetic on token ids.

The ids of an output are not on the wire. They are taken to be the ids of its text: exact where
the text encodes to the tokens that were sampled; elsewhere the floor expects tokens to be reused
that were never in the model's state, so it errs against the server, by the answer's length at
most. A cancelled request counts as a prompt like any other, with its whole prompt's floor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlx_backend.errors import PromptRejected
from mlx_backend.interface import PromptEncoder
from mlx_backend.messages import TokenIds


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """Tokens at the front that `a` and `b` share."""
    shorter = min(len(a), len(b))
    differing = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differing[0]) if len(differing) else shorter


class History:
    """Every token sequence that a server has had in its state so far.

    `distinct` counts the tokens of their common tree: what a store without duplicates would hold.
    """

    def __init__(self) -> None:
        self._sequences: list[TokenIds] = []
        self.distinct = 0

    def known(self, tokens: TokenIds) -> int:
        """The longest prefix of `tokens` that an earlier sequence begins with."""
        return max((common_prefix(tokens, earlier) for earlier in self._sequences), default=0)

    def add(self, tokens: TokenIds) -> None:
        self.distinct += len(tokens) - self.known(tokens)
        self._sequences = [
            earlier for earlier in self._sequences if common_prefix(earlier, tokens) < len(earlier)
        ]
        self._sequences.append(tokens)


def floor(prompt: TokenIds, known: int, boundaries: Sequence[int] | None) -> int:
    """Tokens of `prompt` that must be read when its first `known` have been read before.

    `boundaries` are the offsets at which a state can be taken up again; None where any can.
    """
    if boundaries is not None:
        known = max((offset for offset in boundaries if offset <= known), default=0)
    return max(1, len(prompt) - known)


def message_boundaries(
    encoder: PromptEncoder,
    prompt: TokenIds,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> tuple[int, ...]:
    """Offsets in `prompt` where a message ends, found by rendering the first of its messages.

    A rendered beginning ends with a generation tail; what of it the whole prompt shares (an
    assistant's header, where the assistant is next) belongs to the boundary. Beginnings that the
    template refuses have none.
    """
    offsets = {0, len(prompt)}
    for count in range(1, len(messages)):
        try:
            beginning = encoder.chat(messages[:count], tools).tokens
        except PromptRejected:
            continue
        offsets.add(common_prefix(beginning, prompt))
    return tuple(sorted(offsets))


def output_encoder(encoder: PromptEncoder) -> Callable[[str], TokenIds]:
    """Text to ids as they would follow a prompt: without the beginning-of-text token."""
    a, b = encoder.text("x").tokens, encoder.text("y").tokens
    opening = 1 if len(a) > 1 and a[0] == b[0] else 0
    return lambda text: encoder.text(text).tokens[opening:] if text else np.empty(0, np.int32)
