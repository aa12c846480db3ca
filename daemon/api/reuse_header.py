"""`x-mlxd-reuse`: what a reply's header says of what was reused, and why not more. Pure."""

from __future__ import annotations

from daemon.generation import Started

NAME = "x-mlxd-reuse"

_TELLS_MESSAGE = frozenset({"diverged", "no_checkpoint"})


def reuse_header(started: Started | None) -> dict[str, str]:
    """As in `reused=421 of 1145; reason=continues`. Empty while nothing is known."""
    if started is None:
        return {}
    parts = [f"reused={started.reused} of {started.prompt}"]
    reason = started.reason
    if reason is not None:
        parts.append(f"reason={reason.code}")
        if reason.code in _TELLS_MESSAGE and reason.message_index is not None:
            parts.append(f"message={reason.message_index} {reason.message_role}")
    return {NAME: "; ".join(parts)}
