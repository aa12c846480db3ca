"""Which of a model's files are good: each for itself, and each with what it stands on.

A file says which tokens it holds; that these are the ones its name was made of, with all those
before it, is found by going down from file to file. So what comes out of here can be trusted as
far as descriptions go: only the arrays behind them are not verified yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from daemon.disk_cache import folder as folders
from daemon.disk_cache.files import FileKind, KeyChain, StoredFile
from daemon.disk_cache.folder import Listed, in_words, is_shortage
from daemon.disk_cache.format import BadFile
from daemon.disk_cache.storing import read_head

log = logging.getLogger(__name__)

Good: TypeAlias = tuple[StoredFile, float]


@dataclass(slots=True)
class Survey:
    """What was found: `good` files, parents before what stands on them, with the time of their
    last use. `bad` ones by name, with what is wrong, are deleted, and `useless` ones, that are as
    they should be, but what they stand on is not there."""

    good: list[Good] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    useless: list[str] = field(default_factory=list)


def warn_of(bad: Mapping[str, str]) -> None:
    """Say that files were deleted, if any were, and what was wrong with one of them."""
    if bad:
        name, why = next(iter(bad.items()))
        count = len(bad)
        log.warning("deleted %d files from the disk cache, such as %s: %s", count, name, why)


def survey(model: int, identity: str) -> Iterator[Survey | None]:
    """Look through one model's folder, a file at each step; the last step gives the outcome.

    Raises OSError or MemoryError where there is too little of something to look: then all files
    are left.
    """
    found: dict[str, Good] = {}
    outcome = Survey()
    before = folders.listed(model)
    for listed in before:
        _look(model, identity, listed, found, outcome)
        yield None
    if _orphans(found):
        # What a new file stands on was there before it, but may have been listed too early.
        seen = {listed.name for listed in before}
        for listed in folders.listed(model):
            if listed.name not in seen:
                _look(model, identity, listed, found, outcome)
                yield None
    _chain(identity, found, outcome)
    _remove(model, outcome)
    yield outcome


def _look(
    model: int, identity: str, listed: Listed, found: dict[str, Good], outcome: Survey
) -> None:
    try:
        head = read_head(model, listed.name)
        if head.file.identity != identity:
            raise BadFile("it is another model's")
    except FileNotFoundError:
        return
    except (BadFile, OSError) as error:
        if is_shortage(error):
            raise
        outcome.bad[listed.name] = in_words(error)
    else:
        found[listed.name] = (head.file, listed.used_at)


def _remove(model: int, outcome: Survey) -> None:
    for name in outcome.useless:
        folders.kept_anyway(model, name)
    for name in tuple(outcome.bad):
        try:
            if not folders.remove(model, name):
                del outcome.bad[name]  # gone meanwhile: nobody's fault
        except OSError as error:
            outcome.bad[name] += f"; it stays: {in_words(error)}"


def _orphans(found: dict[str, Good]) -> bool:
    keys = {file.key for file, _ in found.values() if file.kind is FileKind.BLOCK}
    return any(file.parent and file.parent not in keys for file, _ in found.values())


def _chain(identity: str, found: dict[str, Good], outcome: Survey) -> None:
    """Put what was found in order, and apart what does not stand where it says, or on nothing."""
    blocks = {file.key: file for file, _ in found.values() if file.kind is FileKind.BLOCK}
    footings: dict[str, KeyChain] = {}  # of good blocks: all tokens before their own
    for file, used_at in sorted(found.values(), key=_depth):
        below = blocks.get(file.parent)
        if not _may_stand(file, below):
            outcome.bad[file.name] = "it cannot stand where it says"
            continue
        if file.parent and file.parent not in footings:
            outcome.useless.append(file.name)
            continue
        footing = _footing(identity, file, below, footings)
        if footing.copy().extend(file.tokens) != file.key:
            outcome.bad[file.name] = "its tokens are not those of its name"
            continue
        outcome.good.append((file, used_at))
        if file.kind is FileKind.BLOCK:
            footings[file.key] = footing


def _depth(good: Good) -> tuple[int, int]:
    """What a file stands on begins before it."""
    return good[0].start, good[0].end


def _may_stand(file: StoredFile, below: StoredFile | None) -> bool:
    """Whether a file can be at its place, if `below` is what it stands on, as far as that is
    there."""
    if not file.parent:
        return file.start == 0
    return below is None or below.start < file.start <= below.end


def _footing(
    identity: str, file: StoredFile, below: StoredFile | None, footings: dict[str, KeyChain]
) -> KeyChain:
    """The chain of all tokens before a file's own."""
    if below is None:
        return KeyChain(identity)
    chain = footings[file.parent].copy()
    chain.extend(below.tokens[: file.start - below.start])
    return chain
