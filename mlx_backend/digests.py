"""Numbers that stand for texts and are the same in every process, as `hash` is not."""

from __future__ import annotations

from hashlib import blake2b

_NUMBER_BYTES = 8


def number_of(*parts: str | bytes | int) -> int:
    """64 bits that stand for these parts in this order; an int is one such number."""
    digest = blake2b(digest_size=_NUMBER_BYTES)
    for part in parts:
        if isinstance(part, int):
            part = part.to_bytes(_NUMBER_BYTES, "little")
        elif isinstance(part, str):
            part = part.encode("utf-8", "surrogatepass")
        digest.update(len(part).to_bytes(_NUMBER_BYTES, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")
