"""A row of the settings' table: how it is declared, and what the command line and README show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from daemon.written_values import Parser

SHOWN_SIZES = {"MiB": 2**20, "GB": 10**9}


def row(
    parse: Parser,
    values: str,
    help: str,
    default: Any = None,
    unset: str = "",
    *,
    is_size: bool = False,
) -> Any:
    """One line of the table. `unset` says what happens without a value, where default is None; a
    default that `is_size` is bytes, and shown in larger units."""
    metadata = {"parse": parse, "values": values, "help": help, "unset": unset, "is_size": is_size}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table, as the command line and the README show it."""

    name: str
    default: Any
    parse: Parser
    values: str
    help: str
    unset: str
    is_size: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment_name(self) -> str:
        return "MLXD_" + self.name.upper()

    @property
    def shown_default(self) -> str:
        if self.default is None:
            return self.unset
        if self.is_size:
            return next(_shown_sizes(self.default), str(self.default))
        return str(self.default)


def _shown_sizes(nbytes: int) -> Iterator[str]:
    for unit, size in SHOWN_SIZES.items():
        if nbytes % size == 0:
            yield f"{nbytes // size}{unit}"


def settings_in(declared: type[Any]) -> tuple[Setting, ...]:
    """The rows of a dataclass whose fields are declared by `row`."""
    return tuple(Setting(each.name, each.default, **each.metadata) for each in fields(declared))
