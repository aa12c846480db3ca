"""Why tokens of a prompt were read: one code of a closed list, a place, and a sentence.

The place is the offset where the prompt left what the tree holds, and the message it lies in. If
the session whose prompt it is went another way before, there or at an earlier offset from which
only others went on like this, the ids on both sides are kept, so that its user can see which line
of an agent's is not the same twice. Nothing here looks at more of a prompt than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemon.prefix_cache.matching import NEXT_TOKENS, Match, Reason
from daemon.prefix_cache.tombstones import Cause
from daemon.status import ReadReason
from mlx_backend.messages import MessageStart, Prompt, TokenIds

NEAR_TOKENS = 16
"""A checkpoint so close to the fork is as good as one there; so little in common is a template's
opening, which all prompts have."""

LEAD_TOKENS = 8
"""How many tokens in front of a difference are shown with it: which line it is in."""

READ = " read: "
"""Ends what a sentence says was read; why that had to be follows."""

CAUSES = {
    Cause.ENTRIES: "more entries than allowed",
    Cause.BYTES: "for want of memory",
    Cause.ARRAYS: "more arrays than allowed",
    Cause.IDLE: "its session was idle",
    Cause.RESET: "it was reset",
    Cause.SESSIONS: "more sessions than are kept",
}


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a session leaves its own history: what was stored there, and what it sent instead.

    `lead`: the last tokens in front of that, the same on both sides.
    """

    lead: TokenIds
    stored: TokenIds
    sent: TokenIds


@dataclass(frozen=True, slots=True)
class FromDisk:
    """What of a prompt was read in from disk; `nbytes` of files, within `seconds`.

    `left`: up to which token there is more, which was left there; `lost`: up to which token there
    was more, which could not be read; 0 if there is not.
    """

    tokens: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    left: int = 0
    lost: int = 0


def departure(match: Match, prompt: Prompt) -> Departure | None:
    """Where a session leaves its own history with this prompt; None where it goes on with it."""
    left_at = match.own_common
    lead = prompt.tokens[max(0, left_at - LEAD_TOKENS) : left_at]
    sent = prompt.tokens[left_at:][:NEXT_TOKENS]
    if not len(match.own_next) or not len(sent):
        return None
    return Departure(lead.copy(), match.own_next, sent.copy())  # views would keep the whole prompt


def read_reason(
    match: Match,
    prompt: Prompt,
    *,
    restore_failed: bool = False,
    from_disk: FromDisk = FromDisk(),
) -> ReadReason:
    """Why `prompt` was read as far as it was, though `match` was found."""
    code = _code(match, len(prompt), restore_failed=restore_failed)
    message = prompt.message_at(match.common)
    is_evicted = code == "evicted"
    disk = _from_disk(from_disk, match.length)
    sentence = _sentence(code, match, len(prompt), _place(prompt, message), disk)
    return ReadReason(
        code="restore_failed" if from_disk.lost else code,
        sentence=sentence + _own_departure(match, prompt) + _on_disk(from_disk),
        left_at=match.common,
        message_index=None if message is None else message.index,
        message_role=None if message is None else message.role,
        nearest=match.length if code == "no_checkpoint" else None,
        evicted_seconds=match.evicted_seconds if is_evicted else None,
        evicted_by=str(match.evicted_by) if is_evicted else None,
    )


def cut_short(reason: ReadReason, read: int, to_read: int) -> ReadReason:
    """The reason of a request that ended when `read` of its `to_read` tokens were read."""
    _, _, why = reason.sentence.partition(READ)
    sentence = f"{read:,} of {_tokens(to_read)}{READ}it ended before the rest; {why}"
    return replace(reason, sentence=sentence)


def _code(match: Match, prompt: int, *, restore_failed: bool) -> str:
    """One of `REASONS`."""
    if restore_failed:
        return "restore_failed"
    if match.why is Reason.OFF:
        return "no_reuse"
    if match.why is Reason.EVICTED or match.why is Reason.NOT_KEPT:
        return match.why.value
    is_opening = match.common < min(NEAR_TOKENS, prompt - 1)
    if match.why is Reason.FIRST_SEEN or (is_opening and not len(match.own_next)):
        return "first_seen"
    if match.why is Reason.NO_CHECKPOINT and match.common - match.length >= NEAR_TOKENS:
        return "no_checkpoint"
    goes_elsewhere = len(match.stored_next) > 0 and match.common < prompt
    return "diverged" if goes_elsewhere else "continues"


def _sentence(code: str, match: Match, prompt: int, place: str, disk: str) -> str:
    """`disk` is said of the tokens that were restored."""
    read = f"{_tokens(prompt - match.length)} read"
    match code:
        case "restore_failed":
            return f"All {_tokens(prompt)} read: restoring {_tokens(match.length)} failed."
        case "no_reuse":
            return (
                f"All {_tokens(prompt)} read: nothing is reused with this model and these limits."
            )
        case "first_seen" if not match.common:
            return f"All {read}: nothing stored begins like this prompt."
        case "first_seen":
            return f"{read}: nothing stored begins like this prompt, but for {match.common:,}."
        case "evicted":
            return f"{read}: {_loss(match)}, which left {match.length:,}{disk}."
        case "not_kept":
            return (
                f"{read}: {_tokens(match.lost)} of it were read before, but did not fit the "
                f"cache's limits; {match.length:,} were kept{disk}."
            )
        case "no_checkpoint":
            reach = f", up to {place}" if place else ""
            return (
                f"{read}: the first {_tokens(match.common)} are stored{reach}, but the last point "
                f"a row can be restored from is after {match.length:,}{disk}."
            )
        case "diverged":
            where = f", in {place}" if place else ""
            return (
                f"{read}: restored {_tokens(match.length)}{disk}; after {match.common:,}{where}, "
                "what is stored goes on differently."
            )
    return f"{read}: restored {_tokens(match.length)}{disk}, all that is stored of this prompt."


def _from_disk(disk: FromDisk, restored: int) -> str:
    """How many of the restored tokens came from disk, if any did."""
    if not disk.tokens:
        return ""
    share = "all" if disk.tokens == restored else f"{disk.tokens:,}"
    return f", {share} of them from disk ({_size(disk.nbytes)} in {_time(disk.seconds)})"


def _on_disk(disk: FromDisk) -> str:
    """What is there, or was, and did not come from there."""
    words = ""
    if disk.left:
        words += f" More is on disk, up to token {disk.left:,}, which would have taken longer."
    if disk.lost:
        words += f" More was on disk, up to token {disk.lost:,}, which could not be read."
    return words


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{1000 * seconds:.0f} ms"


def _size(nbytes: int) -> str:
    """Bytes as disks are sold by."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def _own_departure(match: Match, prompt: Prompt) -> str:
    """That its session's history goes another way at an earlier offset, if it does."""
    if not len(match.own_next) or match.own_common >= match.common:
        return ""
    place = _place(prompt, prompt.message_at(match.own_common))
    where = f", in {place}" if place else ""
    return f" Its session's own history goes on differently after {match.own_common:,}{where}."


def _loss(match: Match) -> str:
    words = "" if match.evicted_by is None else f" ({CAUSES[match.evicted_by]})"
    since = "" if match.evicted_seconds is None else f" {_ago(match.evicted_seconds)}"
    return f"{_tokens(match.lost)} could be restored once, but were evicted{since}{words}"


def _ago(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _place(prompt: Prompt, message: MessageStart | None) -> str:
    """Where in the prompt, in words; nothing where it has no messages."""
    if message is not None:
        return f"message {message.index} ({message.role})"
    return "what precedes its first message" if prompt.messages else ""


def _tokens(count: int) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"
