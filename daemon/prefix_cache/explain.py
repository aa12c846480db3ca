"""Why tokens of a prompt were read, in one plain and true sentence."""

from __future__ import annotations

from daemon.prefix_cache.cache import Match, Reason


def why_read(match: Match | None, prompt: int, *, restore_failed: bool = False) -> str:
    """About a prompt of `prompt` tokens; `match` is None where the cache was not asked."""
    if match is None or match.why is Reason.OFF:
        return f"All {_tokens(prompt)} read: nothing is reused with this model and these limits."
    if restore_failed:
        return f"All {_tokens(prompt)} read: restoring {_tokens(match.length)} failed."
    read = _tokens(prompt - match.length)
    if match.why is Reason.FIRST_SEEN:
        return f"All {read} read: nothing stored begins with the same token."
    if match.why is Reason.NO_CHECKPOINT:
        return (
            f"{read} read: the first {_tokens(match.common)} are stored, but the last point "
            f"a row can be restored from is after {match.length:,}."
        )
    if match.why is Reason.EVICTED:
        return (
            f"{read} read: {_tokens(match.lost)} could be restored once, but were evicted "
            f"down to {match.length:,}."
        )
    return f"{read} read: restored {_tokens(match.length)}, all that is stored of this prompt."


def _tokens(count: int) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"
