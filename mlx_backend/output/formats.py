"""Which way a model writes its calls: found once, from its chat template and its added tokens."""

from __future__ import annotations

from collections.abc import Collection

from mlx_backend.output.call_format import CallFormat, Spelling
from mlx_backend.output.tagged_formats import TAGGED_FORMATS

CALL_FORMATS: tuple[type[CallFormat], ...] = (*TAGGED_FORMATS,)
"""In the order in which they are asked: the more unmistakable first."""


def find_call_format(template: str, added_tokens: Collection[str]) -> CallFormat | None:
    """The format of a model; None if nothing says that it can call tools."""
    for kind in CALL_FORMATS:
        if kind.is_written_by(template, added_tokens):
            return kind(Spelling(frozenset(added_tokens).intersection(kind.marks)))
    return None
