"""The environment that an agent gets: launchd's own is bare, and knows nothing of a shell's.

Made of what matters to the daemon only, and not of the shell's PATH: the same account's
installations are the same, from whatever shell. Secrets stay out of it, since everybody may read
a plist; they have files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

TOOLS_PATH = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
HUB_WORDS = ("HF_ENDPOINT", "HF_HUB_OFFLINE")


def agent_environment(
    variables: Mapping[str, str], home: Path, also: Iterable[str] = ()
) -> dict[str, str]:
    """What of `variables` an agent needs, with the hub's cache as an absolute path; `also` names
    further ones to hand on."""
    kept = {name: variables[name] for name in (*FOLDERS, *HUB_WORDS, *also) if variables.get(name)}
    hub_home = _hub_home(variables, home)
    cache = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    return {
        **kept,
        "PATH": ":".join(TOOLS_PATH),
        "HF_HOME": str(hub_home),
        "HF_HUB_CACHE": str(_absolute(cache, home) if cache else hub_home / "hub"),
    }


def standing_alone(value: str, here: Path) -> str:
    """A file or folder by its absolute path, since an agent starts elsewhere; what is neither
    (as a hub's repository that is written alike) as it is."""
    found = here / Path(value).expanduser()
    return str(found) if found.exists() else value


def _hub_home(variables: Mapping[str, str], home: Path) -> Path:
    """Where huggingface_hub keeps what it knows; by its own rules, and never relative."""
    named = variables.get("HF_HOME")
    if named:
        return _absolute(named, home)
    caches = variables.get("XDG_CACHE_HOME")
    return (_absolute(caches, home) if caches else home / ".cache") / "huggingface"


def _absolute(named: str, home: Path) -> Path:
    """A path that stands alone: `~` is the home folder, and what is relative starts there."""
    if named == "~" or named.startswith("~/"):
        return home / named[2:]
    return home / named
