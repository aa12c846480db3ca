"""Prompts for what stands between two texts, by the marks that a tokenizer has for that.

A model learned to fill in with its own marks in its own order; every family spells them otherwise.
The texts are content: what they spell of control tokens stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mlx_backend.errors import PromptRejected
from mlx_backend.messages import TokenIds, token_ids

TokenOf: TypeAlias = Callable[[str], int | None]
"""The id of a token by its text; None if the tokenizer has no such token."""


@dataclass(frozen=True, slots=True)
class FillInForm:
    """The marks in the order of a prompt. `prefix` stands before the first text, `suffix` before
    the second, `middle` at the end, if the family has one; `ends` are what may end an answer.

    `suffix_first`: the second text comes first. `joins_suffix`: no blank is put before it by a
    tokenizer that puts one before words.
    """

    prefix: str
    suffix: str
    middle: str | None
    ends: tuple[str, ...] = ()
    suffix_first: bool = False
    joins_suffix: bool = False


_FORMS = (
    FillInForm(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>"),
    ),
    FillInForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>")),
    FillInForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>",)),
    FillInForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    FillInForm("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",), joins_suffix=True),
    FillInForm("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    FillInForm("[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)


def find_form(token_of: TokenOf) -> FillInForm | None:
    """The form whose marks the tokenizer has."""
    return next((form for form in _FORMS if all(t is not None for t in _ids(form, token_of))), None)


def end_ids(token_of: TokenOf) -> frozenset[int]:
    """The tokens that end what was filled in, beside those that end any text."""
    form = find_form(token_of)
    if form is None:
        return frozenset()
    found = (*_ids(form, token_of), *(token_of(text) for text in form.ends))
    return frozenset(token for token in found if token is not None)


def fill_in_parts(
    before: str, after: str, token_of: TokenOf, encode: Callable[[str, bool], TokenIds]
) -> list[TokenIds]:
    """The ids of a prompt in parts; `encode` takes a text, and whether it goes on within a line.

    Raises PromptRejected where the tokenizer has no such marks.
    """
    form = find_form(token_of)
    if form is None:
        raise PromptRejected(
            "This model's tokenizer has no marks for filling in; leave `suffix` out.", "suffix"
        )
    first = [_mark(form.prefix, token_of), encode(before, False)]
    second = [_mark(form.suffix, token_of), encode(after, form.joins_suffix)]
    parts = [*second, *first] if form.suffix_first else [*first, *second]
    return parts if form.middle is None else [*parts, _mark(form.middle, token_of)]


def _mark(text: str, token_of: TokenOf) -> TokenIds:
    return token_ids([token_of(text)])


def _ids(form: FillInForm, token_of: TokenOf) -> Iterator[int | None]:
    return (token_of(text) for text in (form.prefix, form.suffix, form.middle) if text is not None)
