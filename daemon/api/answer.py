"""The one output pipeline: token ids of a generation to the events of an answer.

A streamed answer is these events in a dialect's frames, any other is the same events collected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from daemon.chat import (
    Block,
    CallBegun,
    CallBlock,
    CallDelta,
    CallDone,
    Completion,
    Ended,
    EndReason,
    Envelope,
    Event,
    Opening,
    Score,
    Scored,
    ScoredText,
    TextBlock,
    TextDelta,
    ThoughtBlock,
    ThoughtDelta,
    Warned,
)
from daemon.deliveries import Generation
from daemon.errors import GenerationFailed
from daemon.generation import Failed, Finished, FinishReason, Generated, Started, Usage
from mlx_backend.interface import OutputStream
from mlx_backend.messages import (
    CallArguments,
    CallFinished,
    CallStarted,
    Malformed,
    Piece,
    StopFound,
    TextPiece,
    ThoughtPiece,
    TokenScore,
)

CLOSING_TOKENS = 32
"""How many tokens behind the only call may say nothing: the mark that closes it, and its turn's."""


@dataclass(slots=True)
class Answer:
    """One generation's answer, for one consumer. Usage is the same whichever way it is read.

    `call_id` is what the ids of its calls begin with; with `has_one_call` it ends where more would
    be said behind its first. `text_of` is what a token says, for scores.
    `sampled` are the ids it consists of, of which so many were `told` (the last ones may be held
    back, as what may become a mark is) and so many are a `thought`.
    `is_ended_here`: these say more than was told. `is_ended_by_model`: they are a whole turn.
    """

    generation: Generation
    output: OutputStream
    prompt: int
    call_id: str = "call_"
    has_one_call: bool = False
    text_of: Callable[[int], bytes] = lambda token: b""
    reused: int = 0
    sampled: list[int] = field(default_factory=list)
    told: int = 0
    whole_calls: int = 0
    is_thinking: bool = False
    thought: int = 0
    after_call: int = 0
    is_ended_here: bool = False
    is_ended_by_model: bool = False

    @property
    def opening(self) -> Opening:
        started = self.generation.started
        return Opening(self.prompt, 0 if started is None else started.reused)

    async def events(self) -> AsyncIterator[Event]:
        """Ends with `Ended`, or raises the DaemonError that ended the generation.

        A stop string finishes the generation too, and so does the only call that is wanted.
        """
        async for event in self.generation:
            match event:
                case Started():
                    self.reused = event.reused
                case Generated():
                    for said in self._said(event):
                        yield said
                        if isinstance(said, Ended):
                            self.generation.finish()
                            return
                case Finished():
                    for said in self._last_events(event.reason):
                        yield said
                case Failed():
                    raise event.error

    def _said(self, generated: Generated) -> Iterator[Event]:
        """What the tokens say, one by one, so that `sampled` ends where the answer does."""
        for token, score in zip_longest(generated.tokens, generated.scores):
            self.sampled.append(token)
            if score is not None:
                yield Scored((self._score(score),))
            pieces = self.output.push((token,))
            yield from self._events(pieces)
            if pieces:
                self.told = len(self.sampled)
            self.thought += self.is_thinking
            if self.has_one_call and self.whole_calls:
                self.after_call += 1
                if self.after_call > CLOSING_TOKENS:
                    yield self._ended_here(EndReason.CALLS)

    def _score(self, score: TokenScore) -> Score:
        alternatives = (ScoredText(self.text_of(token), log) for token, log in score.alternatives)
        return Score(ScoredText(self.text_of(score.token), score.logprob), tuple(alternatives))

    def _events(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        for piece in pieces:
            if self.has_one_call and self.whole_calls:
                yield self._ended_here(EndReason.CALLS)
                return
            match piece:
                case TextPiece(text):
                    self.is_thinking = False
                    yield TextDelta(text)
                case ThoughtPiece(text):
                    self.is_thinking = True
                    yield ThoughtDelta(text)
                case CallStarted(index, name):
                    self.is_thinking = False
                    yield CallBegun(index, f"{self.call_id}{index}", name)
                case CallArguments(index, json):
                    yield CallDelta(index, json)
                case CallFinished(index):
                    self.whole_calls += 1
                    yield CallDone(index)
                case Malformed(why):
                    yield Warned(why)
                case StopFound(stop):
                    yield self._ended_here(EndReason.STOP_STRING, stop)
                    return

    def _last_events(self, reason: FinishReason) -> Iterator[Event]:
        if reason is FinishReason.CANCELLED:
            raise GenerationFailed("The request was cancelled.", code="cancelled")
        is_cut = reason in (FinishReason.LENGTH, FinishReason.REPETITION)
        for event in self._events(self.output.finish(is_cut=is_cut)):
            yield event
            if isinstance(event, Ended):
                return
        if reason is FinishReason.REPETITION:
            yield Warned("The answer had begun to repeat itself without end, and was ended.")
            yield self._ended(EndReason.REPETITION)
        elif is_cut:
            yield self._ended(EndReason.LENGTH)
        else:
            self.is_ended_by_model = True
            yield self._ended(EndReason.CALLS if self.whole_calls else EndReason.STOP)

    def _ended_here(self, reason: EndReason, stop: str | None = None) -> Ended:
        self.is_ended_here = True
        return self._ended(reason, stop)

    def _ended(self, reason: EndReason, stop: str | None = None) -> Ended:
        read = self.prompt - self.reused
        usage = Usage(self.prompt, self.reused, read, len(self.sampled), self.thought)
        return Ended(reason, usage, stop)


class Collector:
    """A whole answer from its events, as they come. What was not finished is left out."""

    def __init__(self) -> None:
        self._blocks: list[tuple[type[TextBlock | ThoughtBlock], list[str]] | CallBegun] = []
        self._arguments: dict[int, list[str]] = {}
        self._whole: set[int] = set()
        self._scores: list[Score] = []
        self._warnings: list[str] = []
        self.ended: Ended | None = None

    def take(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._add(TextBlock, text)
            case ThoughtDelta(text):
                self._add(ThoughtBlock, text)
            case CallBegun():
                self._blocks.append(event)
                self._arguments[event.index] = []
            case CallDelta(index, json):
                self._arguments[index].append(json)
            case CallDone(index):
                self._whole.add(index)
            case Scored(scores):
                self._scores += scores
            case Warned(message):
                self._warnings.append(message)
            case Ended():
                self.ended = event

    def _add(self, kind: type[TextBlock | ThoughtBlock], text: str) -> None:
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, tuple) and last[0] is kind:
            last[1].append(text)
        else:
            self._blocks.append((kind, [text]))

    @property
    def has_open_call(self) -> bool:
        """Whether a call was begun and is not whole."""
        return len(self._whole) < len(self._arguments)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._finished_blocks())

    def _finished_blocks(self) -> Iterator[Block]:
        for block in self._blocks:
            if not isinstance(block, CallBegun):
                kind, texts = block
                yield kind("".join(texts))
            elif block.index in self._whole:
                arguments = "".join(self._arguments[block.index])
                yield CallBlock(block.id, block.name, arguments)

    def completion(self, envelope: Envelope) -> Completion:
        """Raises GenerationFailed if the answer has not ended."""
        if self.ended is None:
            raise GenerationFailed("The answer broke off.")
        scores, warnings = tuple(self._scores), tuple(self._warnings)
        is_open = self.has_open_call
        return Completion(envelope, self.blocks, self.ended, scores, warnings, is_open)
