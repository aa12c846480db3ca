"""The settings file: `config.toml`, read to text by key with its line, and written with care.

Reading uses Python's own parser, because every command reads the file and has to be quick. Writing
keeps comments and order. What the keys mean is `settings`' business.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.errors import ConfigurationError

HEADER = "Settings of mlxd. `mlxd config` lists them all; `mlxd restart` makes changes count."


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value as the text that a flag would have, and the line it stands in."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """`values` by key, with underscores; empty where there is no file."""

    path: Path
    values: Mapping[str, FileValue] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Where a key stands, in words."""
        return f"{self.path}, line {self.values[key].line}: {key}"


def read(path: Path) -> ConfigFile:
    """What the file says; nothing if there is none. Raises ConfigurationError."""
    try:
        written = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ConfigFile(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    try:
        parsed = tomllib.loads(written)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    values: dict[str, FileValue] = {}
    for key, value in parsed.items():
        line = _line_of(key, written)
        name = key.replace("-", "_")
        if name in values:
            raise ConfigurationError(f"{path}, line {line}: {key} stands there twice.")
        values[name] = FileValue(_as_text(value, f"{path}, line {line}: {key}"), line)
    return ConfigFile(path, values)


def write_value(path: Path, key: str, value: str) -> None:
    """Set a key; the rest of the file stays as it is. Raises ConfigurationError."""
    import tomlkit

    document = _document(path)
    for written in [each for each in document if each.replace("-", "_") == key]:
        if written != key:
            document.remove(written)
    if _is_table(value):
        table = tomlkit.table()
        for name, model in (pair.split("=", 1) for pair in value.split(",")):
            table[name.strip()] = model.strip()
        document[key] = table
    else:
        document[key] = int(value) if re.fullmatch(r"0|[1-9][0-9]{0,17}", value) else value
    _replace(path, tomlkit.dumps(document))


def remove_value(path: Path, key: str) -> bool:
    """Take a key out; whether it was there. Raises ConfigurationError."""
    import tomlkit

    document = _document(path)
    found = [each for each in document if each.replace("-", "_") == key]
    for written in found:
        document.remove(written)
    if found:
        _replace(path, tomlkit.dumps(document))
    return bool(found)


def _document(path: Path) -> Any:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if not path.exists():
        document = tomlkit.document()
        document.add(tomlkit.comment(HEADER))
        document.add(tomlkit.nl())
        return document
    read(path)  # what cannot be read is refused in the words that reading has for it
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except TOMLKitError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error


def _replace(path: Path, written: str) -> None:
    """Write the whole file or nothing of it; its mode stays, a new one is its owner's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".config-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(written)
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _is_table(value: str) -> bool:
    return re.fullmatch(r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", value) is not None


def _as_text(value: Any, place: str) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case int() | float():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
        case dict() if all(isinstance(item, str) for item in value.values()):
            return ",".join(f"{name}={item}" for name, item in value.items())
        case _:
            raise ConfigurationError(f"{place} has to be a text, a number or a truth value.")


def _line_of(key: str, written: str) -> int:
    """The line of a top-level key or table; 1 where it is written in an unusual way."""
    name = rf"""["']?{re.escape(key)}["']?"""
    pattern = rf"^[ \t]*(?:{name}[ \t]*[=.]|\[[ \t]*{name}[ \t]*[\].])"
    found = re.search(pattern, written, re.MULTILINE)
    return 1 if found is None else written.count("\n", 0, found.start()) + 1
