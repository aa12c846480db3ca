"""Token ids of one answer to text: whole characters only, cut before the first stop string.

Invariants: the text of all deltas is the same however the ids were grouped; valid text never
shows U+FFFD; a character cut short by the end shows one. Nothing here raises, whatever the ids.

What a token's bytes are is the tokenizer's business: see `token_text`. This module imports no
mlx and no tokenizer, so that a scripted backend can use it too.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mlx_backend.messages import Piece, StopFound, TextPiece


class TextDecoder(Protocol):
    """Ids to text, incrementally: one instance per answer."""

    def push(self, ids: Sequence[int]) -> str:
        """The characters that became complete."""

    def finish(self) -> str:
        """What is left, with U+FFFD for an incomplete character."""


class ByteDecoder:
    """Decodes tokens that stand for bytes, as byte-level and byte-fallback vocabularies do.

    `bytes_of` gives a token's bytes, b"" for one that has no text (a special or unknown id).
    `drop_leading_space` removes one space in front of the whole text, as SentencePiece does.
    """

    def __init__(
        self, bytes_of: Callable[[int], bytes], *, drop_leading_space: bool = False
    ) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = drop_leading_space

    def push(self, ids: Sequence[int]) -> str:
        return self._without_leading_space(
            self._decoder.decode(b"".join(self._bytes_of(token) for token in ids))
        )

    def finish(self) -> str:
        return self._without_leading_space(self._decoder.decode(b"", final=True))

    def _without_leading_space(self, text: str) -> str:
        if not self._drop_space or not text:
            return text
        self._drop_space = False
        return text.removeprefix(" ")


class StopStrings:
    """Finds the stop string that is complete first, and holds back what may yet become one.

    Complete first, not begun first: so the result does not depend on how the text was grouped.
    Of two that end together the longer wins.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string; "" once one was found."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        if (match := self._first_match(text)) is not None:
            start, self.found = match
            self._held = ""
            return text[:start]
        certain = self._held_from(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _held_from(self, text: str) -> int:
        """Where the longest suffix begins that is a true prefix of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters:
                suffix = text[start:]
                if any(stop.startswith(suffix) for stop in self._stops):
                    return start
        return len(text)


class TextOutput:
    """The `OutputStream` of an answer that is only text: `decoder`, then stop strings."""

    def __init__(self, decoder: TextDecoder, stop: Iterable[str] = ()) -> None:
        self._decoder = decoder
        self._stops = StopStrings(stop)

    def push(self, ids: Sequence[int]) -> Sequence[Piece]:
        if self._stops.found is not None:
            return ()
        return self._pieces(self._stops.push(self._decoder.push(ids)))

    def finish(self, *, is_cut: bool = False) -> Sequence[Piece]:
        if self._stops.found is not None:
            return ()
        text = self._stops.push(self._decoder.finish())
        return self._pieces(text + self._stops.finish())

    def _pieces(self, text: str) -> Sequence[Piece]:
        pieces: list[Piece] = [TextPiece(text)] if text else []
        if self._stops.found is not None:
            pieces.append(StopFound(self._stops.found))
        return pieces
