"""Tables without lines: one column takes what room is left and wraps, the others never shrink.

Each row is laid out by itself with the same widths, so that a remark can stand below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, JustifyMethod, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDEST = 100
INDENT = 4


@dataclass(frozen=True, slots=True)
class Column:
    """`width` in characters; 0 for the one that takes what is left."""

    name: str
    width: int = 0
    justify: JustifyMethod = "right"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that all rows of a table share."""

    columns: Sequence[Column]

    def header(self) -> RenderableType:
        return self._line((column.name for column in self.columns), "bold")

    def row(self, *cells: str, note: str = "") -> RenderableType:
        line = self._line(cells)
        return Group(line, remark(note)) if note else line

    def _line(self, cells: Iterable[str], style: str = "") -> RenderableType:
        grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
        for column in self.columns:
            if column.width:
                grid.add_column(width=column.width, justify=column.justify, no_wrap=True)
            else:
                grid.add_column(ratio=1, overflow="fold")
        grid.add_row(*(Text(cell, style) for cell in cells))
        return Constrain(grid, WIDEST)


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and what they are; long words go on in the next line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(value))
    return grid


def remark(text: str) -> RenderableType:
    """What is said below a row."""
    return Constrain(Padding(Text(text, "dim", overflow="fold"), (0, 0, 0, INDENT)), WIDEST)


def section(title: str, parts: Iterable[RenderableType]) -> RenderableType:
    """An empty line, a title, and what belongs to it."""
    return Group(Text(), Text(title, "bold"), *parts)
