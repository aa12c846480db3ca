"""Requests to token ids: render with the model's own template, then encode by pieces.

Invariants: control tokens come from the template alone; a prompt begins with exactly one
beginning-of-text token where the model wants one; every id is within the vocabulary; a longer
history begins with the ids of the shorter one, as far as the template lets it.

Rendering and encoding run in the caller's thread, which should not be the event loop's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

import numpy as np

from mlx_backend.clock import ConversationClock
from mlx_backend.content import Content
from mlx_backend.control import ControlTokens, find_control_tokens
from mlx_backend.conversation import Conversations
from mlx_backend.errors import PromptRejected
from mlx_backend.interface import ShouldStop, never
from mlx_backend.length import stop_if
from mlx_backend.marks import PROBE_USERS, Head, MarkFinder, Rendering
from mlx_backend.messages import NO_EFFORT, Effort, Marks, Prompt, SampledTurn, token_ids
from mlx_backend.pieces import PieceEncoder
from mlx_backend.places import Traced
from mlx_backend.rendered import RenderedEncoder, rendered_as
from mlx_backend.templates import Template, check_options
from mlx_backend.token_text import TokenText
from mlx_backend.traits import Message, TemplateTraits, find_traits


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
    `context_size` is refused early; None refuses none.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: Template | None,
        vocabulary: Vocabulary,
        now: Callable[[], datetime] = datetime.now,
        context_size: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        source = template.source if template is not None else ""
        added = tokenizer.get_added_tokens_decoder()
        self.control = ControlTokens(find_control_tokens(added, source))
        bytes_of = TokenText(tokenizer).bytes_of
        self.pieces = PieceEncoder(tokenizer, self.control, bytes_of, context_size)
        self._rendered = RenderedEncoder(self.pieces, vocabulary.bos_id, bytes_of)
        self._chat = None
        if template is not None:
            self._chat = _Chat(template, self.control, self._rendered, now)
            self._chat.check_pieces()

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
        prompt = self._chat.encode(messages, tools, template_options or {}, should_stop)
        self._within_vocabulary(prompt.tokens, "messages")
        return prompt

    def remember(self, prompt: Prompt, sampled: Sequence[int], turn: SampledTurn) -> None:
        pass

    def fill_in(self, before: str, after: str, should_stop: ShouldStop = never) -> Prompt:
        raise PromptRejected("This model has no marks for filling in.", "suffix")

    def text(self, text: str, should_stop: ShouldStop = never) -> Prompt:
        if _has_surrogates(text):
            raise PromptRejected("Half of a surrogate pair: this is not text.", "prompt")
        ids = self._rendered.begun_once(self.pieces.plain(text, should_stop))
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


class _Chat:
    """Messages, tools and options to ids and marks."""

    def __init__(
        self,
        template: Template,
        control: ControlTokens,
        rendered: RenderedEncoder,
        now: Callable[[], datetime],
    ) -> None:
        self._rendered = rendered
        self.traits = find_traits(template)
        self._content = Content(control)
        self._conversations = Conversations(self.traits, self._content)
        self._marks = MarkFinder(template, self.traits, rendered.encode)
        self._clock = ConversationClock(now)

    def check_pieces(self) -> None:
        """Try the encoding by pieces on a conversation as this template renders it."""
        rendering = Rendering((), {}, datetime(2024, 1, 1), None)
        with suppress(PromptRejected):
            self._rendered.pieces.check(self._marks.render(_SAMPLE, rendering, generation=True))

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        should_stop: ShouldStop,
    ) -> Prompt:
        check_options(options)
        options = self._content.data(options, "template_options")
        named = [self._content.tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
        known_tools = [tool for _, tool in named]
        conversation, origins = self._conversations.traced(messages, known_tools)
        key = (hash(tuple(name for name, _ in named)), json.dumps(options, sort_keys=True))
        opening = next((i for i, m in enumerate(conversation) if m["role"] != "system"), -1)
        opened_with = tuple(message["content"] for message in conversation[: opening + 1])
        name = (key, hash(opened_with))
        day = self._clock.day(name, is_opening=len(conversation) <= opening + 1)
        shown = known_tools if self.traits.shows_tools else []
        rendering = Rendering(shown, options, day, (key, day))
        roles = [str(message["role"]) for message in messages]
        turn = self._rendered.encode_turn(
            name,
            Traced(conversation, origins, roles),
            lambda shown: _until(
                should_stop, self._marks.pieces(shown, rendering, generation=True)
            ),
            should_stop,
        )
        head = self._head(messages, known_tools)
        return Prompt(
            turn.ids,
            self._marks.marks(turn.ids, conversation, head, rendering),
            turn.starts,
            begins_in_thought=self._opens_thought(turn.text),
            rendered_as=rendered_as(turn.text),
        )

    def _opens_thought(self, text: str) -> bool:
        """Whether the generation tail ends inside a think block."""
        tags = self.traits.think_tags
        return tags is not None and text.rstrip().endswith(tags[0])

    def _head(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> Head:
        """The system text and tools that this conversation opens with."""
        leading = list(takewhile(lambda message: message["role"] in _HEAD_ROLES, messages))

        def examples() -> list[list[Message]]:
            users = ({"role": "user", "content": text} for text in PROBE_USERS)
            return [self._conversations.normalise([*leading, user], tools) for user in users]

        return Head(hash(tuple(message.get("content") for message in leading)), examples)


_HEAD_ROLES = ("system", "developer")
_SAMPLE: tuple[Message, ...] = (
    {"role": "user", "content": " What  is\n\nthis?\n"},
    {"role": "assistant", "content": "A test: é, 1234.\n"},
    {"role": "user", "content": "So it is"},
)


def _until(should_stop: ShouldStop, pieces: Iterator[str]) -> Iterator[str]:
    for count, piece in enumerate(pieces):
        if count % 64 == 0:
            stop_if(should_stop)
        yield piece


def _has_surrogates(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
