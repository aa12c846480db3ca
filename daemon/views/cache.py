"""What the prefix cache holds: its entries as a list, or as the tree that they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from daemon.status import CacheContents, EntryStatus
from daemon.views.status import cache_facts
from daemon.views.tables import WIDEST, Column, Layout, facts
from daemon.views.words import age, count, counted, listed, phrase, plain, size

LAYOUT = Layout(
    (
        Column("tokens", 9),
        Column("own", 9),
        Column("bytes", 7),
        Column("hits", 6),
        Column("age", 5),
        Column("used", 5),
        Column("", 1),
        Column("what it is"),
    )
)
SMALLEST_TEXT = 24
"""Columns that a node's description gets, however deep it is."""

STRAIGHT, ASIDE, RAIL = "● ", "├─● ", "│ "


def cache_view(contents: CacheContents, *, as_tree: bool = False) -> RenderableType:
    if not contents.entries:
        listing: Iterable[RenderableType] = [Text("Nothing is kept yet.")]
    elif as_tree:
        listing = [EntryTree(contents.entries)]
    else:
        listing = entries_table(contents.entries)
    return Group(facts(cache_facts(contents.cache)), Text(), *listing)


def entries_table(entries: Iterable[EntryStatus]) -> Iterator[RenderableType]:
    """The one that was used last at the top; `used` is how long ago."""
    yield LAYOUT.header()
    for entry in sorted(entries, key=lambda entry: (entry.idle_seconds, -entry.tokens)):
        yield LAYOUT.row(
            count(entry.tokens),
            count(entry.own_tokens),
            size(entry.own_bytes),
            count(entry.hits),
            age(entry.age_seconds),
            age(entry.idle_seconds),
            "",
            description(entry),
        )


def description(entry: EntryStatus) -> str:
    """What a node was captured as, of whom, and what else it is."""
    owner = f" of {plain(entry.session)}" if entry.session else ""
    live = "live" if entry.live_of == entry.session else f"live for {plain(entry.live_of or '')}"
    return listed(
        (
            f"{phrase(entry.kind)}{owner}" if entry.kind else "branching point",
            "checkpoint" if entry.has_checkpoint else "",
            live if entry.live_of is not None else "",
            f"in use by {count(entry.pins)}" if entry.pins else "",
        )
    )


class EntryTree:
    """The tree, a node a line: tokens from the root, and what the node adds.

    Where the tree parts, the branch with the most below it goes on straight down and the others
    stand indented before it. So the depth of the drawing grows with the logarithm of the tree's
    size, and a conversation of a hundred turns is a straight line.
    """

    def __init__(self, entries: Sequence[EntryStatus]) -> None:
        self._children: dict[int | None, list[EntryStatus]] = {}
        for entry in entries:
            self._children.setdefault(entry.parent, []).append(entry)
        weight = _weights(entries)
        for siblings in self._children.values():
            siblings.sort(key=lambda entry: (weight[entry.id], entry.id))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        yield Text(f"{'tokens':>9}  what it adds to the line above", "bold")
        for number, root in enumerate(self._children.get(None, ())):
            if number:
                yield Text()
            for entry, rails, turn in self._lines(root):
                yield from self._drawn(console, entry, rails, turn, width)

    def _lines(self, root: EntryStatus) -> Iterator[tuple[EntryStatus, str, str]]:
        """Each node with the rails left of it, and how its own rail begins."""
        stack = [(root, "", STRAIGHT)]
        while stack:
            entry, rails, turn = stack.pop()
            yield entry, rails, turn
            below = rails if turn == STRAIGHT else rails + RAIL
            *sides, main = self._children.get(entry.id, [None])
            if main is not None:
                stack.append((main, below, STRAIGHT))
            stack += [(side, below, ASIDE) for side in reversed(sides) if side is not None]

    def _drawn(
        self, console: Console, entry: EntryStatus, rails: str, turn: str, width: int
    ) -> Iterator[Text]:
        first = f"{count(entry.tokens):>9}  {rails}{turn}"
        rail_below = RAIL if entry.id in self._children else " " * len(RAIL)
        further = " " * 11 + rails + (rail_below if turn == STRAIGHT else RAIL + rail_below)
        room = max(width - len(first), SMALLEST_TEXT)
        for index, line in enumerate(Text(_added(entry)).wrap(console, room, overflow="fold")):
            line.rstrip()
            yield Text(further if index else first).append_text(line)


def _weights(entries: Sequence[EntryStatus]) -> dict[int, int]:
    """The number of nodes at and below each node."""
    weight = {entry.id: 1 for entry in entries}
    for entry in reversed(entries):  # parents come first in the walk
        if entry.parent is not None:
            weight[entry.parent] += weight[entry.id]
    return weight


def _added(entry: EntryStatus) -> str:
    return listed(
        (
            f"+{count(entry.own_tokens)}",
            size(entry.own_bytes),
            description(entry),
            counted(entry.hits, "hit") if entry.hits else "",
            f"used {age(entry.idle_seconds)} ago",
        )
    )
