"""How long a prompt is at least, found without encoding it whole.

A tokenizer takes some hundred bytes for each token until it is done, and cannot be stopped. So a
text that hardly fits the context is counted first, in slices, and only until that is certain.
Slices are cut at white space where there is some; what a cut can add is taken off again, so that
nothing is refused that would fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlx_backend.control import BREAK, as_written
from mlx_backend.errors import EncodingStopped, PromptTooLong
from mlx_backend.interface import ShouldStop

SLICE_CHARACTERS = 1 << 15
"""A tokenizer takes well under a tenth of a second for so many."""

_CUT_TOKENS = 16  # a cut in the middle of a word or of a run of blanks adds less than this
_HARDLY_FITS = 4  # characters per token of the room that is left


class LengthCheck:
    """Refuses what cannot fit `context_size`; None refuses nothing. Immutable.

    `tokenizer` is a `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer: Any, context_size: int | None) -> None:
        self._tokenizer = tokenizer
        self._context_size = context_size

    def check(self, rendered: str, known: int, should_stop: ShouldStop) -> None:
        """Raise PromptTooLong if `known` tokens and those of `rendered` are certainly too many.

        Control tokens that content only spells are counted as if they were some: fewer, that is.
        """
        size = self._context_size
        if size is None:
            return
        if len(rendered) < max(2 * SLICE_CHARACTERS, _HARDLY_FITS * (size - known)):
            return
        least = known
        for part in _slices(rendered):
            stop_if(should_stop)
            text = as_written(part.replace(BREAK, ""))
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            least += max(0, len(encoding) - _CUT_TOKENS)
            if least > size:
                raise PromptTooLong(least, size)


def stop_if(should_stop: ShouldStop) -> None:
    if should_stop():
        raise EncodingStopped("nobody waits for this prompt any more")


def _slices(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + SLICE_CHARACTERS
        if end < len(text):
            middle = start + SLICE_CHARACTERS // 2
            blank = max(text.rfind(" ", middle, end), text.rfind("\n", middle, end))
            end = blank if blank > 0 else end
        yield text[start:end]
        start = end
