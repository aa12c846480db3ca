"""The configurations of coding agents in an account's home, and whether they ask this daemon.

They are read as text: each agent has a format of its own, and an address is an address in all of
them. Nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from daemon.doctor import Finding, Severity

PLACES = {
    "Claude Code": (".claude/settings.json",),
    "Codex": (".codex/config.toml",),
    "opencode": (".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
    "pi": (".pi/agent/models.json",),
    "Qwen Code": (".qwen/settings.json",),
    "Continue": (".continue/config.yaml",),
    "aider": (".aider.conf.yml",),
}
"""Below the home folder."""

LOCAL = re.compile(r"https?://(?:127\.0\.0\.1|localhost|\[::1\]):(\d{1,5})(/[^\s\"',}]*)?")
MAX_BYTES = 1 << 20
LINES = "The README has the lines for it, and the menu bar copies them."


def check_agents(home: Path, port: int) -> Iterator[Finding]:
    """A finding for each configuration that is there."""
    for agent, places in PLACES.items():
        for place in places:
            text = _read(home / place)
            if text is not None:
                yield _checked(agent, f"~/{place}", text, port)


def _read(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _checked(agent: str, place: str, text: str, port: int) -> Finding:
    addresses = [(int(found[1]), found[2] or "") for found in LOCAL.finditer(text)]
    ours = [path for number, path in addresses if number == port]
    if agent == "Claude Code" and any(path.startswith("/v1") for path in ours):
        words = f"{place} asks for /v1/v1/messages: its base URL must end before /v1"
        fix = f"Set ANTHROPIC_BASE_URL to http://127.0.0.1:{port} there."
        return Finding(agent, Severity.WARNING, words, fix)
    if ours:
        return Finding(agent, Severity.OK, f"{place} asks this daemon")
    others = sorted({number for number, _ in addresses})
    if others and "mlxd" in text:
        words = f"{place} asks port {others[0]}, while the daemon's is {port}"
        fix = f"Change the port there, or the daemon's: `mlxd config set port {others[0]}`."
        return Finding(agent, Severity.WARNING, words, fix)
    return Finding(agent, Severity.NOTE, f"{place} is there, and does not ask this daemon", LINES)
