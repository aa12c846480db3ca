"""How few tokens of a prompt a server could read: the measure that reads are counted against.

Floor of a request = max(1, prompt - longest common prefix with any earlier prompt or any earlier
prompt with its output). Where the model's state cannot be cut at will, that prefix is taken back
to the nearest message boundary at or before it. All of it is arithmetic on token ids.

The ids of an output are not on the wire. They are taken to be the ids of its text: exact where
the text encodes to the tokens that were sampled; elsewhere the floor expects tokens to be reused
that were never in the model's state, so it errs against the server, by the answer's length at
most. A cancelled request counts as a prompt like any other, with its whole prompt's floor.

Being stopped changes nothing of what a server has had, but a kill does: then it is what it had when
it last had the time to save it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mlx_backend.errors import PromptRejected
from mlx_backend.interface import PromptEncoder
from mlx_backend.messages import TokenIds

Messages: TypeAlias = Sequence[Mapping[str, Any]]


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

    def copy(self) -> History:
        """As it is now, whatever is added to this one later."""
        other = History()
        other._sequences, other.distinct = list(self._sequences), self.distinct
        return other

    def known(self, tokens: TokenIds) -> int:
        """The longest prefix of `tokens` that an earlier sequence begins with."""
        return max((common_prefix(tokens, earlier) for earlier in self._sequences), default=0)

    def add(self, tokens: TokenIds) -> None:
        self.distinct += len(tokens) - self.known(tokens)
        self._sequences = [
            earlier for earlier in self._sequences if common_prefix(earlier, tokens) < len(earlier)
        ]
        self._sequences.append(tokens)


def floor(prompt: TokenIds, known: int) -> int:
    """Tokens of `prompt` that must be read when a state of its first `known` can be had."""
    return max(1, len(prompt) - known)


def boundary_before(
    encoder: PromptEncoder, prompt: TokenIds, messages: Messages, tools: Messages, known: int
) -> int:
    """The last offset ≤ `known` in `prompt` where one of its messages ends; 0 if there is none."""
    if known >= len(prompt):
        return len(prompt)
    for count in range(len(messages) - 1, 0, -1):
        offset = _message_end(encoder, prompt, messages[:count], tools)
        if offset <= known:
            return offset
    return 0


def _message_end(
    encoder: PromptEncoder, prompt: TokenIds, beginning: Messages, tools: Messages
) -> int:
    """Where in `prompt` the messages of `beginning` end, by what renderings of them share with it.

    A template may render a message otherwise when a user message follows (it drops thinking), so
    the beginning is tried as it is and with one behind it; of the latter, only what does not
    depend on who speaks next counts. An assistant's header, where the assistant is next, belongs
    to the beginning: the model was asked to go on from there.
    """
    asked = common_prefix(_rendered(encoder, beginning, tools), prompt)
    user, other = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    followed = _rendered(encoder, [*beginning, user], tools)
    otherwise = _rendered(encoder, [*beginning, other, user], tools)
    shared = common_prefix(followed, prompt)
    if len(otherwise):
        shared = min(shared, common_prefix(followed, otherwise))
    return max(asked, shared)


def _rendered(encoder: PromptEncoder, messages: Messages, tools: Messages) -> TokenIds:
    """The prompt's ids; none where the template refuses these messages."""
    try:
        return encoder.chat(messages, tools).tokens
    except PromptRejected:
        return np.empty(0, np.int32)


def output_encoder(encoder: PromptEncoder) -> Callable[[str], TokenIds]:
    """Text to ids as they would follow a prompt: without the beginning-of-text token."""
    a, b = encoder.text("x").tokens, encoder.text("y").tokens
    opening = 1 if len(a) > 1 and a[0] == b[0] else 0
    return lambda text: encoder.text(text).tokens[opening:] if text else np.empty(0, np.int32)


def turn_end(encoder: PromptEncoder) -> int:
    """The token that the template writes behind an answer."""
    said = "q"
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", "?"), ("assistant", said), ("user", "?"))
    ]
    tokens = encoder.chat(messages).tokens
    (places,) = np.nonzero(tokens == output_encoder(encoder)(said)[-1])
    return int(tokens[places[-1] + 1])
