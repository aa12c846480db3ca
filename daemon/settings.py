"""Every setting, declared once: flag, environment variable, key in the file, line in the README.

The fields of `Settings` are the table. A value comes from the highest source that names it: a
flag, then the environment (`MLXD_…`), then `config.toml`, then the default; where each came from
is kept beside it.
All sources are text and go through one parser, so a wrong value is refused in the same words
wherever it stands. The only module that reads the environment. Imports no third-party code.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from daemon import contradictions
from daemon.config_file import ConfigFile, read
from daemon.errors import ConfigurationError
from daemon.setting_rows import Setting, row, settings_in
from daemon.written_values import (
    SECONDS_PER_YEAR,
    absolute_path,
    address,
    alias_list,
    byte_size,
    dotted_name,
    duration,
    one_of,
    or_none,
    origin_list,
    pairs_in,
    seconds_in,
    text,
    whole_number,
)


class Origin(StrEnum):
    """Where a value came from, lowest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Settings:
    """What `mlxd serve` runs with. Sizes are bytes, lengths tokens."""

    model: str | None = row(
        text,
        "FOLDER_OR_REPO",
        "Model folder, or the name of a hub repository that is already downloaded",
        unset="the demo's model",
    )
    name: str | None = row(
        text, "NAME", "Name by which clients ask for the model", unset="the model's own"
    )
    trust_remote_code: str = row(
        one_of("no", "yes"), "no|yes", "Run the Python code that some model folders bring", "no"
    )
    port: int = row(whole_number(1, 65535), "PORT", "Port on the loopback interface", 8642)
    host: str | None = row(
        or_none(address),
        "ADDRESS",
        "Listen on this address, too; beyond loopback it takes the next setting and an API key",
        unset="loopback only",
    )
    allow_remote: str = row(
        one_of("no", "yes"), "no|yes", "Other machines may ask, where `--host` lets them", "no"
    )
    unix_socket: str | None = row(
        or_none(absolute_path),
        "PATH",
        "Listen on a Unix socket, too, which only your account can open",
        unset="none",
    )
    api_key_file: str | None = row(
        or_none(absolute_path),
        "PATH",
        "The file of the key that clients have to send; of mode 600",
        unset="none: no key",
    )
    api_key_keychain: str | None = row(
        or_none(text),
        "NAME",
        "The item of the macOS keychain that has this key, instead of a file",
        unset="none",
    )
    cors_origins: str | None = row(
        or_none(origin_list),
        "ORIGIN,…",
        "Web pages that may ask and read, such as https://chat.example",
        unset="none",
    )
    kv_bits: int | None = row(
        one_of("4", "8", convert=int), "4|8", "Quantise keys and values", unset="not quantised"
    )
    context_size: int | None = row(
        whole_number(16), "TOKENS", "Longest prompt with its answer", unset="the model's own"
    )
    chunk_tokens: int = row(
        whole_number(16, 65536), "TOKENS", "Prompt tokens read in one go, at most", 512
    )
    prefix_cache_entries: int | None = row(
        whole_number(0),
        "N",
        "Snapshots kept for all; 0 keeps only what sessions hold",
        unset="unlimited",
    )
    prefix_cache_bytes: int | None = row(
        byte_size, "SIZE", "Memory for snapshots, such as 2GB", unset="a share of memory"
    )
    disk_cache_bytes: int | None = row(
        byte_size,
        "SIZE",
        "Disk for what was read, which outlives the daemon; 0 keeps it in memory only",
        unset="a fifth of the free disk",
    )
    disk_cache_folder: str | None = row(
        or_none(absolute_path),
        "PATH",
        "The folder of what it keeps on disk, of this daemon alone",
        unset="in mlxd's cache folder",
    )
    disk_cache_free_bytes: int | None = row(
        byte_size,
        "SIZE",
        "Disk that it leaves free for others in any case",
        unset="a tenth of the disk, 20GB at most",
    )
    disk_cache_write_bytes_per_day: int | None = row(
        or_none(byte_size),
        "SIZE",
        "What it writes in a day at most, to spare the SSD; none for no limit",
        50 * 10**9,
        is_size=True,
    )
    disk_cache_idle_seconds: int = row(
        whole_number(1, SECONDS_PER_YEAR),
        "SECONDS",
        "How long a model has no request before what it read is written",
        30,
    )
    memory_bytes: int | None = row(
        byte_size,
        "SIZE",
        "Memory for running requests and snapshots together",
        unset="what the model leaves",
    )
    pool_bytes: int | None = row(
        byte_size, "SIZE", "Freed memory that mlx may keep for reuse", unset="1/16 of memory"
    )
    wire_weights: str = row(
        one_of("no", "yes"), "no|yes", "Keep the weights, and nothing else, from being paged", "no"
    )
    prefix_checkpoint_prompt_end: str | None = row(
        one_of("initial", "every"),
        "initial|every",
        "Keep the end of a session's first prompt, or of every prompt",
        unset="every; initial with an interval",
    )
    prefix_checkpoint_interval: int | None = row(
        whole_number(16), "TOKENS", "Also keep a snapshot every so many tokens", unset="none"
    )
    prefix_checkpoint_policy: str | None = row(
        dotted_name,
        "PACKAGE.MODULE:FUNCTION",
        "Where prompts are captured, in place of the two options above",
        unset="the two options",
    )
    max_sessions: int = row(
        whole_number(1, 10_000), "N", "Sessions whose last state is kept; the longest unused go", 64
    )
    session_idle_seconds: int = row(
        whole_number(1, SECONDS_PER_YEAR), "SECONDS", "How long an unused session is kept", 3600
    )
    max_concurrent_requests: int = row(
        whole_number(1, 256), "N", "Requests that are read or answered at once", 8
    )
    max_queued_requests: int = row(
        whole_number(0, 100_000), "N", "Requests that may wait; more are answered 429", 64
    )
    keep_alive: str = row(
        duration,
        "DURATION",
        "How long an unused model stays loaded: 90s, 30m, 2h; 0 or never",
        "30m",
    )
    max_loaded_models: int = row(
        whole_number(1, 64), "N", "Models in memory at once; the longest unused make room", 1
    )
    aliases: str | None = row(
        alias_list,
        "NAME=MODEL,…",
        "Other names of local models, also with `*`; in the file a table",
        unset="none",
    )
    shutdown_grace_seconds: int = row(
        whole_number(0, 50), "SECONDS", "How long running requests may go on after a stop", 5
    )
    shutdown_save_seconds: int = row(
        whole_number(0, 60), "SECONDS", "How long writing to the disk may take after that", 10
    )
    max_body_bytes: int = row(byte_size, "SIZE", "Largest request body", 32 * 2**20, is_size=True)
    vendor_telemetry: str = row(
        one_of("cut", "keep"),
        "cut|keep",
        "A vendor's line at the top of system prompts that changes with each request",
        "cut",
    )
    log_level: str = row(
        one_of("debug", "info", "warning", "error"),
        "debug|info|warning|error",
        "How much is logged; prompts and answers never are",
        "info",
    )

    @property
    def prompt_end(self) -> str:
        """`every` or `initial`: an interval alone stands in for the ends of later prompts."""
        without = "every" if self.prefix_checkpoint_interval is None else "initial"
        return self.prefix_checkpoint_prompt_end or without

    @property
    def keep_alive_seconds(self) -> float | None:
        """None: for ever."""
        return seconds_in(self.keep_alive)

    @property
    def shutdown_seconds(self) -> int:
        """What the end of the daemon may take: what runs, then what is still to be written."""
        return self.shutdown_grace_seconds + self.shutdown_save_seconds

    @property
    def is_remote(self) -> bool:
        """Whether other machines can ask."""
        return self.host is not None and not ipaddress.ip_address(self.host).is_loopback

    @property
    def named_origins(self) -> frozenset[str]:
        return frozenset(self.cors_origins.split(",") if self.cors_origins else ())

    @property
    def alias_models(self) -> Mapping[str, str]:
        return dict(pairs_in(self.aliases)) if self.aliases else {}

    @property
    def digest(self) -> str:
        """The same for the same settings, and says nothing of them."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


TABLE = settings_in(Settings)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and where each one came from."""

    settings: Settings
    origins: Mapping[str, Origin]

    def chosen(self) -> str:
        """What differs from an untouched daemon, in one line for the log."""
        named = (each for each in TABLE if self.origins[each.name] is not Origin.DEFAULT)
        parts = (
            f"{each.flag[2:]}={getattr(self.settings, each.name)} ({self.origins[each.name]})"
            for each in named
        )
        return ", ".join(parts) or "defaults"


def environment() -> Mapping[str, str]:
    """This process's, for who hands it on."""
    return os.environ


def require_home(environment: Mapping[str, str] | None = None) -> None:
    """Every path of ours starts at the account's home; without one they would be anywhere.

    Raises ConfigurationError.
    """
    variables = os.environ if environment is None else environment
    home = variables.get("HOME", "")
    if not os.path.isabs(home):
        raise ConfigurationError(
            f"HOME is {home!r}, but has to be the path of your home folder: models, settings and "
            "logs are kept below it. Whatever starts mlxd has to set it."
        )


NO_FILE = ConfigFile(Path("config.toml"))
CONFIG_VARIABLE = "MLXD_CONFIG"


def config_file(default: Path, environment: Mapping[str, str] | None = None) -> ConfigFile:
    """The settings file at its usual place, or where `MLXD_CONFIG` says; empty if there is none.

    Raises ConfigurationError, also for a file that was named but is not there.
    """
    variables = os.environ if environment is None else environment
    named = variables.get(CONFIG_VARIABLE)
    if named and not Path(named).expanduser().is_file():
        raise ConfigurationError(f"{CONFIG_VARIABLE} is {named!r}, but there is no such file.")
    return read(Path(named).expanduser() if named else default)


def resolve(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] | None = None,
    file: ConfigFile = NO_FILE,
) -> Resolved:
    """Settings from the flags given (by setting name), the environment, the file, the defaults.

    `environment` stands in for this process's own. Raises ConfigurationError, which names the
    flag, the variable, or the file's line and key at fault.
    """
    variables = os.environ if environment is None else environment
    _refuse_unknown_keys(file)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for setting in TABLE:
        origins[setting.name], source, raw = _source(setting, flags, variables, file)
        if raw is not None:
            values[setting.name] = _parsed(setting, source, raw)
    settings = Settings(**values)
    _refuse_contradictions(settings)
    return Resolved(settings, origins)


def setting_named(key: str) -> Setting:
    """The setting of a key, written with underscores or hyphens. Raises ConfigurationError."""
    name = key.removeprefix("--").replace("-", "_")
    found = [setting for setting in TABLE if setting.name == name]
    if not found:
        raise ConfigurationError(f"There is no setting `{key}`{_perhaps(name)}")
    return found[0]


def _refuse_unknown_keys(file: ConfigFile) -> None:
    known = {setting.name for setting in TABLE}
    for key in file.values:
        if key not in known:
            raise ConfigurationError(f"{file.place(key)} is no setting{_perhaps(key)}")


def _perhaps(name: str) -> str:
    near = difflib.get_close_matches(name, [setting.name for setting in TABLE], n=1)
    return f"; did you mean `{near[0]}`?" if near else "; `mlxd config` lists them."


def _source(
    setting: Setting,
    flags: Mapping[str, str | None],
    variables: Mapping[str, str],
    file: ConfigFile,
) -> tuple[Origin, str, str | None]:
    """Where the value of `setting` stands: its origin, the name it has there, its text."""
    given = flags.get(setting.name)
    if given is not None:
        return Origin.FLAG, setting.flag, given
    named = variables.get(setting.environment_name)
    if named:
        return Origin.ENVIRONMENT, setting.environment_name, named
    if setting.name in file.values:
        return Origin.FILE, file.place(setting.name), file.values[setting.name].text
    return Origin.DEFAULT, "", None


def _parsed(setting: Setting, source: str, raw: str) -> Any:
    try:
        return setting.parse(raw)
    except ValueError as expected:
        raise ConfigurationError(f"{source} is {raw!r}, but has to be {expected}.") from None


def _refuse_contradictions(settings: Settings) -> None:
    policies = contradictions.in_policies(
        settings.prefix_checkpoint_prompt_end,
        settings.prefix_checkpoint_interval,
        settings.prefix_checkpoint_policy,
    )
    door = contradictions.at_the_door(
        settings.host if settings.is_remote else None,
        settings.allow_remote == "yes",
        settings.api_key_file,
        settings.api_key_keychain,
    )
    most_a_day = settings.disk_cache_write_bytes_per_day
    disk = contradictions.on_disk(settings.disk_cache_bytes, most_a_day)
    if words := policies or door or disk:
        raise ConfigurationError(words)
