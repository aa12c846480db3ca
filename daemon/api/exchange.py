"""One request with its answer, from its admission to its end, whichever way it is told.

What the answer says is collected beside the telling, so that it can be remembered: the prompt that
goes on from it shall not read again what was sampled. That happens before its end is told, since
the next request may follow at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

from daemon.api.answer import Answer, Collector
from daemon.chat import (
    Block,
    ChatRequest,
    Completion,
    Conversation,
    Ended,
    Envelope,
    Event,
    TextBlock,
    ThoughtBlock,
    Warned,
)
from mlx_backend.interface import PromptEncoder
from mlx_backend.messages import Prompt, SampledCall, SampledTurn

log = logging.getLogger(__name__)


class Exchange:
    """For one consumer, who iterates `events` and calls `close` in the end, however it ended.

    `on_end` is called with the whole answer, before its end is told.
    """

    def __init__(
        self,
        request: ChatRequest,
        envelope: Envelope,
        answer: Answer,
        prompt: Prompt,
        prompts: PromptEncoder,
        on_end: Callable[[Completion], None] | None = None,
    ) -> None:
        self.request = request
        self.envelope = envelope
        self.answer = answer
        self._prompt = prompt
        self._prompts = prompts
        self._on_end = on_end
        self._collector = Collector()

    @property
    def completion(self) -> Completion:
        """The whole answer, once it has ended; raises GenerationFailed before."""
        return self._collector.completion(self.envelope)

    async def events(self) -> AsyncIterator[Event]:
        """Those of the answer; raises what they raise."""
        async for event in self.answer.events():
            self._collector.take(event)
            if isinstance(event, Warned):
                log.debug("the answer %s: %s", self.envelope.id, event.message)  # it quotes it
            if isinstance(event, Ended):
                self._remember()
                if self._on_end is not None:
                    self._on_end(self.completion)
            yield event

    def close(self) -> None:
        """Nobody listens any more: stop what still runs, and remember what was said by then."""
        self.answer.generation.cancel()
        if self._collector.ended is None:
            self._remember()

    def _remember(self) -> None:
        """Only if the ids say what the client was told: whole turns, and text that was cut short.

        What a stop string or the only call that was wanted ended says more; a call or a thought
        that was cut may lack the mark that closes it.
        """
        ended, answer = self._collector.ended, self.answer
        turn = turn_of(self._collector.blocks, is_cut=ended is None)
        is_text = bool(turn.text) and not turn.calls and not self._collector.has_open_call
        is_telling = not answer.is_ended_here and (answer.is_ended_by_model or is_text)
        sampled = answer.sampled[: answer.told] if turn.is_cut else answer.sampled
        if isinstance(self.request.prompt, Conversation) and sampled and is_telling:
            self._prompts.remember(self._prompt, sampled, turn)


def turn_of(blocks: tuple[Block, ...], *, is_cut: bool) -> SampledTurn:
    """What an answer said, as prompts are told of it."""
    text, thought, calls = [], [], []
    for block in blocks:
        if isinstance(block, TextBlock):
            text.append(block.text)
        elif isinstance(block, ThoughtBlock):
            thought.append(block.text)
        else:
            calls.append(SampledCall(block.id, block.name, block.arguments))
    return SampledTurn("".join(text), "".join(thought), tuple(calls), is_cut)
