"""Requests to token ids: render with the model's own template, then encode by pieces.

Invariants: control tokens come from the template alone; a prompt begins with exactly one
beginning-of-text token where the model wants one; every id is within the vocabulary; a longer
history begins with the ids of the shorter one, as far as the template lets it.

Rendering and encoding run in the caller's thread, which should not be the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from mlx_backend.chat_prompts import ChatEncoder
from mlx_backend.clock import ConversationClock
from mlx_backend.content import Content
from mlx_backend.control import ControlTokens, find_control_tokens
from mlx_backend.errors import PromptRejected
from mlx_backend.fill_in import end_ids, fill_in_parts
from mlx_backend.interface import ShouldStop, never
from mlx_backend.journal import NO_NOTES, Notes, Value
from mlx_backend.messages import (
    NO_EFFORT,
    Effort,
    Marks,
    Prompt,
    SampledTurn,
    TokenIds,
    token_ids,
)
from mlx_backend.pieces import PieceEncoder
from mlx_backend.recall import Recall
from mlx_backend.remembered import MEMO_BYTES, RememberedAnswers
from mlx_backend.rendered import Beginning, RenderedEncoder
from mlx_backend.splices import splicer_for
from mlx_backend.templates import Template
from mlx_backend.token_text import TokenText
from mlx_backend.traits import TemplateTraits, find_traits

_NOT_NOTED_BY_US = (KeyError, TypeError, ValueError, OverflowError, RecursionError, PromptRejected)
"""What it raises to read a note that says something else than ours do."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`size` is the number of rows of the model's embedding; `bos_id` is what the tokenizer puts
    in front of plain text, None if nothing."""

    size: int
    bos_id: int | None = None


class MlxPromptEncoder:
    """The `PromptEncoder` of one model. Thread-safe.

    `tokenizer` is a `tokenizers.Tokenizer`; `template` is None for a model without one, which
    refuses chats. `now` is for templates that print the date. A prompt that cannot fit
    `context_size` is refused early; None refuses none. Of the answers that it is told of, it
    remembers about `remembered_bytes`. `notes` are what an earlier encoder of this model learned,
    and take what this one does.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: Template | None,
        vocabulary: Vocabulary,
        now: Callable[[], datetime] = datetime.now,
        context_size: int | None = None,
        remembered_bytes: int = MEMO_BYTES,
        notes: Notes = NO_NOTES,
    ) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        source = template.source if template is not None else ""
        added = tokenizer.get_added_tokens_decoder()
        self.control = ControlTokens(find_control_tokens(added, source))
        bytes_of = TokenText(tokenizer).bytes_of
        self.pieces = PieceEncoder(tokenizer, self.control, bytes_of, context_size)
        self._beginning = Beginning(vocabulary.bos_id)
        self._remembered = RememberedAnswers(remembered_bytes, notes)
        self._chat = None
        if template is not None:
            traits = find_traits(template)
            splicer = splicer_for(template, traits, self.control, bytes_of)
            rendered = RenderedEncoder(self.pieces, self._beginning, splicer, bytes_of)
            recall = Recall(self._remembered)
            self._chat = ChatEncoder(template, traits, self.control, rendered, recall, now, notes)
            self._chat.check_pieces()
            self._read(notes)

    def _read(self, notes: Notes) -> None:
        """Learn again what was noted."""
        assert self._chat is not None
        size = self.vocabulary.size
        learn: dict[str, Callable[[Value], None]] = {
            RememberedAnswers.KIND: lambda value: self._remembered.restore(value, size),
            ConversationClock.KIND: self._chat.clock.restore,
            Content.KIND: self._chat.content.restore,
        }
        for note in notes.all():
            with suppress(*_NOT_NOTED_BY_US):
                learn[note.kind](note.value)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know about this model's prompts."""
        if self._chat is None:
            return ("The model has no chat template: it completes plain text only.",)
        if not self.pieces.by_pieces:
            return (
                "Prompts are encoded whole for each turn: the tokenizer cannot do it in parts.",
            )
        return ()

    @property
    def fill_in_end_ids(self) -> frozenset[int]:
        """The tokens that end what was filled in between two texts."""
        return end_ids(self._tokenizer.token_to_id)

    @property
    def traits(self) -> TemplateTraits | None:
        """What the model's template takes; None without one."""
        return None if self._chat is None else self._chat.traits

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        should_stop: ShouldStop = never,
        effort: Effort = NO_EFFORT,
    ) -> Prompt:
        if self._chat is None:
            raise PromptRejected(
                "This model has no chat template; ask it to complete plain text.", "messages"
            )
        prompt = self._chat.encode(messages, tools, template_options or {}, should_stop, effort)
        self._within_vocabulary(prompt.tokens, "messages")
        return prompt

    def remember(self, prompt: Prompt, sampled: Sequence[int], turn: SampledTurn) -> None:
        if prompt.rendered_as is not None and len(sampled):
            self._remembered.put(prompt.rendered_as, sampled, turn)

    def fill_in(self, before: str, after: str, should_stop: ShouldStop = never) -> Prompt:
        for text, field in ((before, "prompt"), (after, "suffix")):
            _check_text(text, field)

        def encode(text: str, goes_on: bool) -> TokenIds:
            return self.pieces.content(text, should_stop, goes_on=goes_on)

        parts = fill_in_parts(before, after, self._tokenizer.token_to_id, encode)
        ids = self._beginning.once(np.concatenate(parts))
        return Prompt(self._within_vocabulary(ids, "prompt"), Marks(is_raw=True))

    def text(self, text: str, should_stop: ShouldStop = never) -> Prompt:
        _check_text(text, "prompt")
        ids = self._beginning.once(self.pieces.plain(text, should_stop))
        return Prompt(self._within_vocabulary(ids, "prompt"), Marks(is_raw=True))

    def ids(self, ids: Sequence[int]) -> Prompt:
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            raise PromptRejected("Token ids have to be whole numbers.", "prompt")
        try:
            checked = self._within_vocabulary(np.array(ids, dtype=np.int64), "prompt")
        except OverflowError:
            raise PromptRejected("A token id is far out of the vocabulary.", "prompt") from None
        return Prompt(token_ids(checked), Marks(is_raw=True))

    def _within_vocabulary(self, ids: Any, field: str) -> Any:
        if not len(ids):
            raise PromptRejected("The prompt is empty.", field)
        outside = (ids < 0) | (ids >= self.vocabulary.size)
        if outside.any():
            place = int(outside.argmax())
            raise PromptRejected(
                f"Token id {int(ids[place])} at place {place} is not in the vocabulary "
                f"(0 to {self.vocabulary.size - 1}).",
                field,
            )
        return ids


def _check_text(text: str, field: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PromptRejected("Half of a surrogate pair: this is not text.", field) from None
