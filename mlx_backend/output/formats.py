"""How a model writes its answers: found once, from its chat template and its added tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlx_backend.control import THINK_TAGS
from mlx_backend.messages import AnswerForm, CallableTool
from mlx_backend.output.answer_output import AnswerOutput, AnswerReader
from mlx_backend.output.call_format import CallFormat, Spelling
from mlx_backend.output.gemma_formats import GEMMA_FORMATS
from mlx_backend.output.harmony import Harmony
from mlx_backend.output.headed_formats import HEADED_FORMATS
from mlx_backend.output.json_formats import CommandJson, GraniteJson, HermesJson
from mlx_backend.output.llama import Llama, PythonCalls
from mlx_backend.output.minimax_m3 import MiniMaxM3Format
from mlx_backend.output.mistral import Mistral
from mlx_backend.output.plain import TextDecoder
from mlx_backend.output.splitting import Splitter, ThinkTags, find_think_tags
from mlx_backend.output.tagged_formats import TAGGED_FORMATS

CALL_FORMATS: tuple[type[CallFormat], ...] = (
    MiniMaxM3Format,
    *TAGGED_FORMATS,
    *HEADED_FORMATS,
    *GEMMA_FORMATS,
    PythonCalls,
    Mistral,
    CommandJson,
    GraniteJson,
    HermesJson,
    Llama,
)
"""In the order in which they are asked: the more unmistakable first."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One model's way to write answers.

    `marks` are the added tokens that the decoder has to give with MARK. `opening_marks` do nothing
    but open a call, `ending_marks` end a turn. `think_tags` are those that the model is known to
    use, as they stand on the tape.
    """

    name: str
    reader: AnswerReader
    calls: CallFormat | Harmony | None
    marks: frozenset[str] = frozenset()
    opening_marks: frozenset[str] = frozenset()
    ending_marks: frozenset[str] = frozenset()
    think_tags: tuple[ThinkTags, ...] = ()

    def output(self, decoder: TextDecoder, form: AnswerForm) -> AnswerOutput:
        return AnswerOutput(decoder, self.reader, form)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        """As `CallFormat.grammar`."""
        return None if self.calls is None else self.calls.grammar(tools, may_repeat)


def find_format(template: str, added_tokens: Collection[str]) -> AnswerFormat:
    """How a model with this chat template ("" if it has none) and these added tokens writes."""
    if Harmony.is_written_by(template, added_tokens):
        return harmony_format(added_tokens)
    return answer_format(find_call_format(template, added_tokens), template, added_tokens)


def told_format(template: str, added_tokens: Collection[str]) -> AnswerFormat:
    """How a model writes whose template knows no tools: as it is told to beside them (see
    `conversation`), which is Hermes' way."""
    return answer_format(HermesJson(Spelling(frozenset())), template, added_tokens)


def find_call_format(template: str, added_tokens: Collection[str]) -> CallFormat | None:
    """What the template writes; else what the tokens are made for. None: no calls at all."""
    for tokens in ((), added_tokens):
        for kind in CALL_FORMATS:
            if kind.is_written_by(template, tokens):
                return kind(Spelling(frozenset(added_tokens).intersection(kind.marks)))
    return None


def answer_format(
    calls: CallFormat | None, template: str = "", added_tokens: Collection[str] = ()
) -> AnswerFormat:
    """Thoughts in tags, and calls as `calls` says."""
    tokens = frozenset(added_tokens)
    think_marks = tokens.intersection(tag for pair in THINK_TAGS for tag in pair)
    tags = find_think_tags(template, Spelling(think_marks))
    own = () if calls is None else tuple(ThinkTags(*pair) for pair in calls.think_tags)
    return AnswerFormat(
        name="text" if calls is None else calls.name,
        reader=Splitter(tags, calls),
        calls=calls,
        marks=think_marks.union(() if calls is None else tokens.intersection(calls.marks)),
        opening_marks=tokens.intersection(() if calls is None else calls.opening_marks),
        think_tags=own or tuple(pair for pair in tags if pair.is_own),
    )


def harmony_format(added_tokens: Collection[str] = ()) -> AnswerFormat:
    tokens = frozenset(added_tokens).intersection(Harmony.marks)
    harmony = Harmony(Spelling(tokens))
    return AnswerFormat(
        name=harmony.name,
        reader=harmony,
        calls=harmony,
        marks=tokens,
        ending_marks=tokens.intersection(harmony.ending_marks),
    )
