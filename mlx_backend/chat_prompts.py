"""Chats to prompts: recalled, normalised, rendered by the model's template, encoded, marked.

What of a client's chat becomes which token is decided in the modules that are put together here;
this one knows the order, and by what a conversation is known again: by what it opens with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from typing import Any

from mlx_backend.clock import ConversationClock
from mlx_backend.content import Content
from mlx_backend.control import THOUGHT_OPENINGS, ControlTokens
from mlx_backend.conversation import Conversations
from mlx_backend.digests import number_of
from mlx_backend.effort import EffortSwitches
from mlx_backend.errors import PromptRejected
from mlx_backend.interface import ShouldStop
from mlx_backend.journal import NO_NOTES, Notes
from mlx_backend.length import stop_if
from mlx_backend.marks import PROBE_USERS, Head, MarkFinder, Rendering
from mlx_backend.messages import NO_EFFORT, Effort, Prompt
from mlx_backend.places import Traced
from mlx_backend.recall import Recall
from mlx_backend.rendered import RenderedEncoder
from mlx_backend.templates import CLOCK, Template, check_options
from mlx_backend.traits import Message, TemplateTraits


class ChatEncoder:
    """Encodes the chats of one template. Thread-safe."""

    def __init__(
        self,
        template: Template,
        traits: TemplateTraits,
        control: ControlTokens,
        rendered: RenderedEncoder,
        recall: Recall,
        now: Callable[[], datetime],
        notes: Notes = NO_NOTES,
    ) -> None:
        self._rendered = rendered
        self._recall = recall
        self.traits = traits
        self.content = Content(control, notes)
        self._conversations = Conversations(self.traits, self.content)
        self._marks = MarkFinder(template, self.traits, rendered.encode)
        self._effort = EffortSwitches(template.variables)
        shows_time = CLOCK in template.source
        self.clock = ConversationClock(now, notes if shows_time else NO_NOTES)

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
        effort: Effort = NO_EFFORT,
    ) -> Prompt:
        check_options(options)
        options = {**self._effort.options(effort), **options}
        options = self.content.data(options, "template_options")
        named = [self.content.tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
        known_tools = [tool for _, tool in named]
        recalled = self._recall.recalled(messages)
        conversation, origins = self._conversations.traced(recalled.messages, known_tools)
        key = number_of(json.dumps(options, sort_keys=True), *(name for name, _ in named))
        opening = next((i for i, m in enumerate(conversation) if m["role"] != "system"), -1)
        name = number_of(key, *(message["content"] for message in conversation[: opening + 1]))
        day = self.clock.day(name, is_opening=len(conversation) <= opening + 1)
        shown = known_tools if self.traits.shows_tools else []
        rendering = Rendering(shown, options, day, (key, day), recalled.answers)
        roles = [str(message["role"]) for message in messages]
        turn = self._rendered.encode_turn(
            name,
            Traced(conversation, origins, roles),
            lambda shown: _until(
                should_stop, self._marks.pieces(shown, rendering, generation=True)
            ),
            recalled.answers,
            should_stop,
        )
        head = self._head(messages, known_tools)
        return Prompt(
            turn.ids,
            self._marks.marks(turn.ids, conversation, head, rendering),
            turn.starts,
            begins_in_thought=turn.text.rstrip().endswith(THOUGHT_OPENINGS),
            rendered_as=turn.plan.rendered_as(recalled.history),
        )

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
