"""The one output pipeline: token ids of a generation to the events of an answer.

A streamed answer is these events in a dialect's frames, any other is the same events collected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from daemon.chat import Completion, Ended, EndReason, Envelope, Event, TextDelta
from daemon.deliveries import Generation
from daemon.errors import GenerationFailed
from daemon.generation import Failed, Finished, FinishReason, Generated, Started, Usage
from mlx_backend.interface import OutputStream

END_REASONS = {FinishReason.STOP: EndReason.STOP, FinishReason.LENGTH: EndReason.LENGTH}


@dataclass(slots=True)
class Answer:
    """One generation's answer, for one consumer. Usage is the same whichever way it is read."""

    generation: Generation
    output: OutputStream
    prompt: int
    reused: int = 0
    generated: int = 0

    async def events(self) -> AsyncIterator[Event]:
        """Ends with `Ended`, or raises the DaemonError that ended the generation.

        A stop string finishes the generation too.
        """
        async for event in self.generation:
            match event:
                case Started():
                    self.reused = event.reused
                case Generated():
                    text, stop = self._decode(event.tokens)
                    if text:
                        yield TextDelta(text)
                    if stop is not None:
                        self.generation.finish()
                        yield self._ended(EndReason.STOP_STRING, stop)
                        return
                case Finished():
                    for last in self._last_events(event.reason):
                        yield last
                case Failed():
                    raise event.error

    def _decode(self, tokens: tuple[int, ...]) -> tuple[str, str | None]:
        """Their text, and the stop string it ran into. Tokens after that one do not count."""
        text = ""
        for token in tokens:
            self.generated += 1
            delta = self.output.push((token,))
            text += delta.text
            if delta.stop is not None:
                return text, delta.stop
        return text, None

    def _last_events(self, reason: FinishReason) -> list[Event]:
        if reason is FinishReason.CANCELLED:
            raise GenerationFailed("The request was cancelled.", code="cancelled")
        held = self.output.finish()
        ended = self._ended(END_REASONS[reason], None)
        if held.stop is not None:
            ended = self._ended(EndReason.STOP_STRING, held.stop)
        return [TextDelta(held.text), ended] if held.text else [ended]

    def _ended(self, reason: EndReason, stop: str | None) -> Ended:
        read = self.prompt - self.reused
        return Ended(reason, Usage(self.prompt, self.reused, read, self.generated), stop)


async def collected(events: AsyncIterator[Event], envelope: Envelope) -> Completion:
    """A whole answer from its events."""
    texts: list[str] = []
    ended: Ended | None = None
    async for event in events:
        match event:
            case TextDelta(text):
                texts.append(text)
            case Ended():
                ended = event
    if ended is None:
        raise GenerationFailed("The answer broke off.")
    return Completion(envelope, "".join(texts), ended)
