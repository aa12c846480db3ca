"""A decoder that tells marks from text: some tokens come as MARK and their spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_backend.output.plain import TextDecoder
from mlx_backend.output.tape import MARK


class MarkingDecoder:
    """`decoder`'s text, with the marks among the ids in their places.

    A character that a mark cuts short shows one U+FFFD, as it does at the end.
    """

    def __init__(self, decoder: TextDecoder, marks: Mapping[int, str]) -> None:
        self._decoder = decoder
        self._marks = marks

    def push(self, ids: Sequence[int]) -> str:
        if self._marks.keys().isdisjoint(ids):
            return self._decoder.push(ids)
        return "".join(map(self._push_one, ids))

    def finish(self) -> str:
        return self._decoder.finish()

    def _push_one(self, token: int) -> str:
        mark = self._marks.get(token)
        return self._decoder.push((token,)) if mark is None else self._marked(mark)

    def _marked(self, mark: str) -> str:
        return self._decoder.finish() + MARK + mark
