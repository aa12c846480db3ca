"""Which tokens' scores belong to a text. Pure.

Scores come for every token: for those of a mark or a thought too, and before the text that they
make, some of which may yet be held back. What a token says tells where its text is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from daemon.chat import Score


class Scores:
    """Scores that no text was found for yet."""

    def __init__(self, scores: Iterable[Score] = ()) -> None:
        self._waiting = list(scores)

    def add(self, scores: Iterable[Score]) -> None:
        self._waiting += scores

    def of(self, text: str) -> list[Score]:
        """Those of the text that was said just now; what is held back of later ones waits on."""
        return self._taken(text.encode(), bytes.rfind)

    def of_next(self, text: str) -> list[Score]:
        """Those of the next whole text, where all scores are there."""
        return self._taken(text.encode(), bytes.find)

    def _taken(self, text: bytes, search: Callable[[bytes, bytes], int]) -> list[Score]:
        """What stands in front of the text belongs to none."""
        said = b"".join(score.drawn.text for score in self._waiting)
        start = search(said, text)
        if start < 0:
            return []
        taken: list[Score] = []
        at = used = 0
        while at < start + len(text):
            score = self._waiting[used]
            at, used = at + len(score.drawn.text), used + 1
            if at > start:
                taken.append(score)
        del self._waiting[:used]
        return taken
