"""A prefix cache and a backend driven as the engine drives them, on a tiny model.

Every forward pass is listened to, so that answers are compared by their log-probabilities. A
`Conversations` remembers in which chunks each token was read first: with those same cuts a cold
run must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from daemon.prefix_cache.cache import Match, PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.backend import MlxBackend
from mlx_backend.interface import Sampled
from mlx_backend.live_row import LiveRow
from mlx_backend.messages import CacheKind, Sampling, TokenIds
from mlx_backend.rows import check_state
from tests.mlx_backend.tiny_rows import tiny_layout, tiny_model

CHUNK = 24
WEIGHT_BYTES = 1 << 30  # so large that rows always share a batch


class ListeningModel:
    """Passes everything on to a model, and keeps the last logits of every list of caches."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = model.modules
        self.logits: dict[int, Any] = {}
        self.failures = 0  # how many coming calls raise
        self.spoilt: LiveRow | None = None  # the row whose next logits are not numbers

    def __call__(self, tokens: Any, cache: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the test says so")
        logits = self.model(tokens, cache=cache)
        if self.spoilt is not None and cache is self.spoilt.caches:
            logits[self.spoilt.index] = mx.nan
            self.spoilt = None
        self.logits[id(cache)] = logits
        return logits

    def log_probabilities(self, row: LiveRow) -> np.ndarray:
        """What the row's last token made of it, (vocabulary,)."""
        logits = self.logits[id(row.caches)][row.index, -1]
        return np.array(logits - mx.logsumexp(logits))


@dataclass
class Answer:
    """What one request came to. `cuts` are the ends of the chunks its state was read in."""

    prompt: TokenIds
    reused: int
    cuts: list[int]
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[np.ndarray] = field(default_factory=list)

    @property
    def history(self) -> TokenIds:
        return np.concatenate([self.prompt, np.array(self.tokens, dtype=np.int32)])


@dataclass(eq=False)
class Request:
    """A request that is decoding."""

    row: LiveRow
    match: Match
    answer: Answer
    length: int


class Conversations:
    """One model, its backend and a cache; `bits` quantises its KV."""

    def __init__(self, kind: str, bits: int | None = None, **limits: Any) -> None:
        self.layout = tiny_layout(kind, bits)
        self.listener = ListeningModel(tiny_model(kind))
        self.backend = MlxBackend(self.listener, self.layout, WEIGHT_BYTES)
        self.is_sliceable = self.layout.kind is CacheKind.SLICEABLE
        self.is_cacheable = self.layout.kind is not CacheKind.UNCACHEABLE
        options: dict[str, Any] = {"max_entries": None, "max_bytes": 1 << 40, "minimum_gap": 1}
        self.cache = PrefixCache(kind=self.layout.kind, **(options | limits))
        self.answers: list[Answer] = []
        self.decoding: list[Request] = []

    def ask(
        self,
        prompt: TokenIds,
        *,
        length: int = 3,
        stops: Sequence[int] = (),
        leave_after: int | None = None,
    ) -> Answer:
        """One request alone, from match to release. `leave_after` chunks the client leaves."""
        request = self.begin(prompt, length=length, stops=stops, leave_after=leave_after)
        while request in self.decoding:
            self.step()
        return request.answer

    def begin(
        self,
        prompt: TokenIds,
        *,
        length: int = 3,
        stops: Sequence[int] = (),
        leave_after: int | None = None,
    ) -> Request:
        """Read a prompt and let it decode, unless the client leaves before that."""
        match = self.cache.match(prompt)
        row = self.backend.open_row(match.snapshot, len(prompt) + length)
        assert row.length == match.length
        answer = Answer(prompt, row.length, self._cuts_of(prompt, row.length))
        self.answers.append(answer)
        request = Request(row, match, answer, length)
        last = len(prompt) - 1
        for count, end in enumerate(chunk_ends(row.length, last, stops), 1):
            self.backend.read(row, prompt[row.length : end])
            answer.cuts.append(end)
            is_leaving = count == leave_after
            if is_leaving or end == last or end in stops:
                self.commit(row, prompt[:end], EntryKind.PARTIAL)
            if is_leaving:
                self.end(request)
                return request
        self.backend.start_decoding(row, int(prompt[-1]), Sampling(), prompt)
        answer.log_probabilities.append(self.listener.log_probabilities(row))
        self.decoding.append(request)
        return request

    def step(self) -> None:
        """One token of every decoding request; those that have enough end."""
        for sampled in self.backend.step():
            request = next(r for r in self.decoding if r.row is sampled.row)
            self._take(request, sampled)

    def _take(self, request: Request, sampled: Sampled) -> None:
        assert sampled.error is None, sampled.error
        answer, row = request.answer, request.row
        answer.tokens.append(sampled.token)
        answer.log_probabilities.append(self.listener.log_probabilities(row))
        answer.cuts.append(row.length - 1)
        if len(answer.tokens) == request.length:
            answer.cuts.append(row.length)
            self.commit(row, answer.history, EntryKind.TURN_END)
            self.decoding.remove(request)
            self.end(request)

    def end(self, request: Request) -> None:
        self.backend.release(request.row)
        self.cache.release(request.match)
        self.cache.check()

    def commit(self, row: LiveRow, key: TokenIds, kind: EntryKind) -> None:
        """Key = exact state, and only what the tree does not know is copied."""
        assert row.length == len(key)
        check_state(self.layout, row.caches, row.length, row.index)
        if not self.cache.wants(key, kind):
            return
        known = self.cache.known(key)
        before = self.backend.counters.bytes_captured
        span = self.backend.capture_span(row, known, len(key)) if known < len(key) else None
        copied = self.backend.counters.bytes_captured - before
        assert copied == (len(key) - known) * self.layout.span_token_bytes
        checkpoint = None if self.is_sliceable else self.backend.capture_checkpoint(row)
        self.cache.insert(key, span=span, checkpoint=checkpoint, kind=kind, conversation="")
        self.cache.check()

    def cold(self, prompt: TokenIds, length: int, cuts: Iterable[int] = ()) -> Answer:
        """The same request without a cache, read in chunks that end at `cuts`."""
        row = self.backend.open_row(None, len(prompt) + length)
        ends = sorted({end for end in cuts if end < len(prompt)} | {len(prompt) - 1})
        for end in ends:
            if end > row.length:
                self.backend.read(row, prompt[row.length : end])
        self.backend.start_decoding(row, int(prompt[-1]), Sampling(), prompt)
        answer = Answer(prompt, 0, ends, [], [self.listener.log_probabilities(row)])
        while len(answer.tokens) < length:
            (sampled,) = self.backend.step()
            answer.tokens.append(sampled.token)
            answer.log_probabilities.append(self.listener.log_probabilities(row))
        self.backend.release(row)
        return answer

    def _cuts_of(self, prompt: TokenIds, length: int) -> list[int]:
        """In which chunks the first `length` tokens were read when they were first."""
        for earlier in self.answers:
            if length and common(earlier.history, prompt) >= length:
                return [cut for cut in earlier.cuts if cut <= length]
        return []


def chunk_ends(start: int, last: int, stops: Iterable[int]) -> list[int]:
    """Where the chunks end that read [start, last): at multiples of the chunk, and at `stops`."""
    ends = {*range(0, last, CHUNK), *stops, last}
    return sorted(end for end in ends if start < end <= last)


def common(one: TokenIds, other: TokenIds) -> int:
    """Tokens that both begin with."""
    size = min(len(one), len(other))
    differs = np.flatnonzero(one[:size] != other[:size])
    return int(differs[0]) if len(differs) else size
