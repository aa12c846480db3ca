"""An encoded prompt, and what another one has in common with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from mlx_backend.messages import TokenIds, token_ids
from mlx_backend.splices import Splice

NOTHING = token_ids([])


@dataclass(frozen=True, slots=True)
class Encoded:
    """A rendered prompt and its ids. `joints` are its last places, as (characters, ids), behind a
    control token: what comes before them does not depend on what follows. `bounds` are the places
    where its pieces begin, from the one on that is the first not taken from an earlier prompt.
    `splices` are the answers in it that were not encoded but remembered."""

    text: str
    ids: TokenIds
    joints: tuple[tuple[int, int], ...] = ()
    bounds: tuple[tuple[int, int], ...] = ((0, 0),)
    splices: tuple[Splice, ...] = ()

    def text_shared_with(self, rendered: str) -> int:
        """How many characters another prompt begins with too, up to a joint."""
        places = (characters for characters, _ in reversed(self.joints))
        return next((c for c in places if rendered.startswith(self.text[:c])), 0)

    def shared_with(self, rendered: str, splices: Sequence[Splice]) -> tuple[int, int]:
        """The last joint up to which another prompt has the same text and the same splices, as
        (characters, ids)."""
        pairs = zip_longest(self.splices, splices)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), ())
        limit = min((s.start for s in differing if s is not None), default=len(rendered))
        for characters, count in reversed(self.joints):
            if characters <= limit and rendered.startswith(self.text[:characters]):
                return characters, count
        return 0, 0


def common_length(left: npt.NDArray[np.int32], right: npt.NDArray[np.int32]) -> int:
    """How many leading ids two prompts share."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
