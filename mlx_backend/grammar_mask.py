"""Holds one row's answer to its grammar: a logits processor.

Which tokens may come next depends on the one before, so its id is waited for on the CPU. The
model already works on the next logits meanwhile, and rows with a grammar share their batches with
no others: nobody else waits.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlx_backend.messages import Grammar, TokenIds


class GrammarMask:
    """Allows what the grammar allows; a turn's end where it is complete, and then nothing else.

    Never raises: `error` says why the row failed.
    """

    def __init__(self, grammar: Grammar, said: TokenIds) -> None:
        """`said` was generated before and is a beginning of what the grammar describes."""
        self.error: str | None = None
        self._matcher = grammar.compiled.deep_copy()
        self._said: TokenIds | None = said

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """`tokens` ends with the newest one in the row's state; `logits` is (1, vocabulary)."""
        if self.error is not None:
            return logits
        try:
            return self._masked(tokens, logits)
        except Exception as error:  # whatever it is, the row's neighbours must go on
            self.error = f"the answer's grammar could not be applied: {error}"
            return logits

    def _masked(self, tokens: Any, logits: Any) -> Any:
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        if self._said is not None:  # the newest token is the prompt's last, or among these
            newest, self._said = self._said.tolist(), None
        else:
            newest = [tokens[-1].item()]
        self._matcher.consume_tokens(newest)
        allowed = _bits(self._matcher.compute_bitmask(), logits.shape[-1])
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error().partition("\n")[0])
        return mx.where(mx.array(allowed), logits, -mx.inf)


def _bits(mask: bytes, size: int) -> Any:
    """A bit mask as `size` booleans; what is beyond it is not allowed."""
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[:size]
    return np.pad(bits, (0, size - len(bits))).astype(bool)
