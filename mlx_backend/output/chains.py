"""What markup looks like from here on: literals, white space and names in a fixed order.

A regular expression would say the same, but not whether a text that ends too early may still
become a match, on which it depends whether to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from mlx_backend.output.tape import SPACE as SPACES
from mlx_backend.output.tape import OutputEnded, Reading, Tape

_LONGEST_NAME = 300


class Space(Enum):
    """Any amount of white space, none too."""

    SPACE = "space"


SPACE = Space.SPACE


@dataclass(frozen=True, slots=True)
class Until:
    """A name or attributes, on one line, and then `mark`."""

    mark: str


@dataclass(frozen=True, slots=True)
class Word:
    """A name up to white space or one of `ends`, which is not read."""

    ends: str


Chain: TypeAlias = Sequence[str | Space | Until | Word]


@dataclass(frozen=True, slots=True)
class Followed:
    """A text that follows `chain` up to `end`. `names` are what `Until` and `Word` stood for."""

    chain: Chain
    end: int
    names: tuple[str, ...] = ()


class Begun(Enum):
    """A text that is over before it follows a chain to its end."""

    BEGUN = "begun"


BEGUN = Begun.BEGUN


def follow(text: str, at: int, chain: Chain) -> Followed | Begun | None:
    """Whether the text at `at` is what the chain says, or may become it. None: it is not."""
    names: list[str] = []
    for link in chain:
        if isinstance(link, str):
            if not text.startswith(link, at):
                return BEGUN if len(text) - at < len(link) and link.startswith(text[at:]) else None
            at += len(link)
        elif isinstance(link, Space):
            at = _behind_space(text, at)
        else:
            end = _name_end(text, at, link)
            if end < 0:
                return BEGUN if _may_be_named(text, at, link) else None
            if end - at > _LONGEST_NAME or "\n" in text[at:end]:
                return None
            names.append(text[at:end])
            at = end + len(link.mark) if isinstance(link, Until) else end
    return Followed(chain, at, tuple(names))


def read_one_of(tape: Tape, chains: Iterable[Chain]) -> Reading[Followed | None]:
    """Wait until it is certain which of the chains the tape follows from here: the first that
    does. Nothing is read. Raises OutputEnded if the answer's end leaves one of them begun."""
    left = tuple(chains)
    while True:
        found = [(chain, follow(tape.text, tape.at, chain)) for chain in left]
        first = next((followed for _, followed in found if followed is not None), None)
        if not isinstance(first, Begun):
            return first
        left = tuple(chain for chain, followed in found if followed is not None)
        yield from tape.more()


def take_end(tape: Tape, chain: Chain) -> Reading[bool]:
    """Whether the chain comes next; then it is read. So is a beginning that the answer ends with:
    where closing marks are all that is missing, nothing is."""
    try:
        found = yield from read_one_of(tape, (chain,))
    except OutputEnded:
        tape.take_all()
        return True
    if found is not None:
        tape.at = found.end
    return found is not None


def _behind_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACES:
        at += 1
    return at


def _name_end(text: str, at: int, link: Until | Word) -> int:
    if isinstance(link, Until):
        return text.find(link.mark, at)
    for place in range(at, min(len(text), at + _LONGEST_NAME + 1)):
        if text[place].isspace() or text[place] in link.ends:
            return place
    return -1


def _may_be_named(text: str, at: int, link: Until | Word) -> bool:
    """Whether a name that has not ended yet may end soon enough."""
    most = _LONGEST_NAME + (len(link.mark) if isinstance(link, Until) else 1)
    rest = text[at : at + most]
    return len(rest) < most and "\n" not in rest
