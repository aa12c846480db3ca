"""From a tokenizer and a template to the `OutputStream`s of a model's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlx_backend.interface import OutputStream
from mlx_backend.messages import AnswerForm
from mlx_backend.output.formats import AnswerFormat, find_format, told_format
from mlx_backend.output.marked import MarkingDecoder
from mlx_backend.output.plain import TextOutput
from mlx_backend.token_text import TokenText


@dataclass(frozen=True, slots=True)
class Answers:
    """How one model's answers are read. `marks` are its control tokens that mean something there,
    `call_mark_ids` those that do nothing but open a call, `ending_ids` those that end a turn."""

    token_text: TokenText
    format: AnswerFormat
    marks: Mapping[int, str]
    call_mark_ids: frozenset[int]
    ending_ids: frozenset[int]

    def output(self, form: AnswerForm) -> OutputStream:
        decoder = self.token_text.decoder()
        if form.is_raw:
            return TextOutput(decoder, form.stop)
        return self.format.output(MarkingDecoder(decoder, self.marks), form)


def find_answers(tokenizer: Any, template: str, *, shows_tools: bool = True) -> Answers:
    """`tokenizer` is a `tokenizers.Tokenizer`; `template` its chat template's source, or "".

    `shows_tools`: the template writes tools, so the model calls them in a way of its own.
    """
    added = {id: entry.content for id, entry in tokenizer.get_added_tokens_decoder().items()}
    format = find_format(template, added.values())
    if format.calls is None or not shows_tools:
        format = told_format(template, added.values())
    return Answers(
        TokenText(tokenizer),
        format,
        marks={id: text for id, text in added.items() if text in format.marks},
        call_mark_ids=frozenset(id for id, text in added.items() if text in format.opening_marks),
        ending_ids=frozenset(id for id, text in added.items() if text in format.ending_marks),
    )
