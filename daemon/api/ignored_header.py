"""`x-mlxd-ignored`: which fields of a request changed nothing here. Pure."""

from __future__ import annotations

from collections.abc import Iterable

NAME = "x-mlxd-ignored"
MAX_CHARACTERS = 1_000


def ignored_header(ignored: Iterable[str]) -> dict[str, str]:
    """As in `metadata, store`; a name that no header can carry is left out. Empty for none."""
    names = [name for name in ignored if name.isascii() and name.isprintable()]
    told = ", ".join(names)[:MAX_CHARACTERS].strip()
    return {NAME: told} if told else {}
