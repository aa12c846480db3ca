"""Which of a model's files are good: each for itself, and each with what it stands on.

A file says which tokens it holds; that these are the ones its name was made of, with all those
before it, is found by going down from file to file. So what comes out of here can be trusted as
far as descriptions go: only the arrays behind them are not verified yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from daemon.disk_cache import folder as folders
from daemon.disk_cache.files import FileKind, KeyChain, StoredFile
from daemon.disk_cache.folder import Listed, in_words, is_shortage
from daemon.disk_cache.format import BadFile
from daemon.disk_cache.storing import read_head

Good: TypeAlias = tuple[StoredFile, float]


@dataclass(slots=True)
class Survey:
    """What was found: `good` files, parents before what stands on them, with the time of their
    last use; `bad` ones by name, with what is wrong, and deleted."""

    good: list[Good] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)


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
    _remove_bad(model, outcome)
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


def _remove_bad(model: int, outcome: Survey) -> None:
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
    """Put what was found in order, and apart what does not stand where it says."""
    footings: dict[str, tuple[StoredFile, KeyChain]] = {}
    for file, used_at in sorted(found.values(), key=_depth):
        chain = _chain_at(identity, file, footings)
        if chain is None:
            outcome.bad[file.name] = "what it stands on is not there"
            continue
        footing = chain.copy()
        if chain.extend(file.tokens) != file.key:
            outcome.bad[file.name] = "its tokens are not those of its name"
            continue
        outcome.good.append((file, used_at))
        if file.kind is FileKind.BLOCK:
            footings[file.key] = (file, footing)


def _depth(good: Good) -> tuple[int, int]:
    """What a file stands on begins before it."""
    return good[0].start, good[0].end


def _chain_at(
    identity: str, file: StoredFile, footings: dict[str, tuple[StoredFile, KeyChain]]
) -> KeyChain | None:
    """The chain of all tokens before a file's own; None if nothing good has the last of them."""
    if file.start == 0:
        return None if file.parent else KeyChain(identity)
    if file.parent not in footings:
        return None
    parent, footing = footings[file.parent]
    if not parent.start < file.start <= parent.end:
        return None
    chain = footing.copy()
    chain.extend(parent.tokens[: file.start - parent.start])
    return chain
