"""Every path that mlxd uses on this machine. Nothing is created here."""

from __future__ import annotations

from pathlib import Path

from platformdirs import PlatformDirs

_DIRECTORIES = PlatformDirs("mlxd", appauthor=False)


def cache_folder() -> Path:
    """What mlxd fetched or made itself. Safe to delete: it is fetched or made again."""
    return _DIRECTORIES.user_cache_path


def models_folder() -> Path:
    """Models of mlxd's own, a folder each; what was pulled from the hub is in the hub's cache."""
    return cache_folder() / "models"


def demo_model_folder() -> Path:
    """Where `mlxd demo` puts the small real model, and `mlxd serve` looks without `--model`."""
    return models_folder() / "SmolLM2-135M-Instruct"


def disk_cache_folder() -> Path:
    """What models have read, so that it outlives the daemon: token ids and state, a folder for
    each model."""
    return cache_folder() / "read"


def token_file() -> Path:
    """The daemon's own token, which nobody but this account can read."""
    return _DIRECTORIES.user_state_path / "private" / "token"


def starts_file() -> Path:
    """Why the last start was refused, and which ones crashed."""
    return _DIRECTORIES.user_state_path / "starts.json"


def config_file() -> Path:
    """Settings that the user wrote down."""
    return _DIRECTORIES.user_config_path / "config.toml"


def logs_folder() -> Path:
    return _DIRECTORIES.user_log_path


def daemon_log() -> Path:
    """The daemon's log, rotated by size."""
    return logs_folder() / "mlxd.log"


def terminal_log() -> Path:
    """What the service writes to its terminal: next to nothing, unless it dies in the middle."""
    return logs_folder() / "launchd.log"


def own_folders() -> tuple[Path, ...]:
    """All that is only mlxd's; models that were fetched by name are in the hub's own cache."""
    folders = (
        _DIRECTORIES.user_config_path,
        _DIRECTORIES.user_state_path,
        _DIRECTORIES.user_cache_path,
        _DIRECTORIES.user_log_path,
    )
    return tuple(dict.fromkeys(folders))


def launch_agents_folder() -> Path:
    """Where macOS looks for an account's agents."""
    return Path.home() / "Library" / "LaunchAgents"


def demo_log() -> Path:
    """What the daemon of the last `mlxd demo` wrote to its terminal."""
    return logs_folder() / "demo.log"
