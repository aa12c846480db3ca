"""Values that cross between the daemon and a backend: frozen, and free of mlx."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int32]
"""Token ids, shape (length,), dtype int32. Never written to after it was handed over."""


def token_ids(ids: object) -> TokenIds:
    """`ids` (any sequence of ints) as `TokenIds`; no copy where it already is one."""
    return np.asarray(ids, dtype=np.int32)


class CacheKind(StrEnum):
    """What can be done with the model's state."""

    SLICEABLE = "sliceable"  # every layer can be cut at any token: spans alone restore a row
    CHECKPOINTED = "checkpointed"  # some layers cannot: a checkpoint is needed to restore a row
    UNCACHEABLE = "uncacheable"  # a layer of an unknown class: nothing is stored, nothing reused


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine's disk, as its files tell. `repo` names a hub repository's.

    `context_size` is what will be honoured, `weight_bytes` what it will take in memory; 0 where
    that is not known.
    """

    name: str
    folder: str = ""
    repo: str = ""
    weight_bytes: int = 0
    context_size: int = 0

    @property
    def key(self) -> str:
        """What tells it from all others, however it is called."""
        return self.repo or self.folder


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the daemon knows of a loaded model.

    `identity` is the hex digest that everything cached belongs to (weights' index, tokenizer,
    template, KV format, adapter, snapshot format). Sizes are bytes; `span_token_bytes` is the KV
    of all sliceable layers for one token, `checkpoint_bytes` an estimate of one full checkpoint
    (0 for sliceable models), `ring_token_bytes` one token of the layers that keep the last few:
    while a chunk is read they hold that chunk beside their window.
    `default_sampling` is what the model's makers recommend; None if they say nothing.
    `disk_refusal`: why none of its state is to be kept on disk; "" where there is no reason.
    """

    name: str
    path: str
    identity: str
    cache_kind: CacheKind
    cache_classes: tuple[str, ...]
    vocabulary_size: int
    context_size: int
    stop_ids: frozenset[int]
    weight_bytes: int
    span_token_bytes: int
    checkpoint_bytes: int = 0
    ring_token_bytes: int = 0
    kv_bits: int | None = None
    warnings: tuple[str, ...] = ()
    default_sampling: Sampling | None = None
    disk_refusal: str = ""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that an answer may call. `schema` is the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer has to look like, from the end of its thinking on.

    `schema`: JSON that it describes ({} is any object). `tools`: a call of one of them, of several
    if `may_repeat`. Both: one or the other. At least one of the two is given.
    """

    schema: Mapping[str, Any] | None = None
    tools: tuple[CallableTool, ...] = ()
    may_repeat: bool = True


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled constraint: immutable, shareable; what `compiled` is, only the backend knows."""

    constraint: Constraint
    compiled: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `seed` is always set; a row's i-th draw depends on (seed, i).

    `alternatives`: how many of the likeliest tokens are told beside each drawn one, with its
    own log-probability; None: no log-probability at all. `grammar` masks what it does not allow.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    alternatives: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural log-probabilities at one place, before temperature, penalties and filters: the drawn
    token's, and the likeliest ones as (token, log-probability), best first."""

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Marks:
    """Offsets (in tokens) where a prompt has a natural joint; 0 where it has none.

    head_end: end of system text and tools, common to every conversation that opens with them.
    last_user_end: end of the last user (or tool result) message, before the generation tail.
    stable_end: how much of the prompt stays a prefix when the conversation goes on.
    is_raw: plain text or ids without a template: the last tokens may merge with what follows.
    """

    head_end: int = 0
    last_user_end: int = 0
    stable_end: int = 0
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class MessageStart:
    """Where a message of the request begins in its prompt: a token offset at which, or shortly
    before which, the template begins to write it. `index` and `role` as the client sent it."""

    offset: int
    index: int
    role: str


@dataclass(frozen=True, slots=True)
class RenderedAs:
    """What a prompt's text was, its generation tail included: its length in characters and a
    digest. By it an answer finds its place again in the prompts that go on from this one.
    `history` stands for what its messages said. All three are the same in every process."""

    characters: int
    digest: bytes
    history: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and encoded prompt: at least one token, every id within the vocabulary.

    `messages` are in the order of the prompt. What precedes the first (a template's own words,
    tools) is no message's; one that the template leaves out is not among them.
    `begins_in_thought`: the generation tail ends inside a think block, so the answer begins there.
    `rendered_as` is None for plain text and ids.
    """

    tokens: TokenIds
    marks: Marks = field(default_factory=Marks)
    messages: tuple[MessageStart, ...] = ()
    begins_in_thought: bool = False
    rendered_as: RenderedAs | None = None

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def message_at(self, offset: int) -> MessageStart | None:
        """The message that the token at `offset` belongs to; None before the first."""
        place = bisect_right(self.messages, offset, key=lambda start: start.offset)
        return self.messages[place - 1] if place else None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes the device allocator holds: in use, pooled for reuse, and the highest ever in use.

    `pool_limit_bytes` may be pooled at most; `wired_bytes` are kept from being paged out.
    """

    active_bytes: int
    pooled_bytes: int
    peak_bytes: int
    pool_limit_bytes: int = 0
    wired_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much thinking the client wants, in no template's words. None: it did not say.

    `level` is minimal, low, medium, high, xhigh or max; `thinking` whether to think at all.
    """

    thinking: bool | None = None
    level: str | None = None


NO_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the ids of one answer are taken apart into.

    `tools`: what may be called; without any, a call's markup is text. `is_raw`: a continuation of
    plain text, in which there are no thoughts and no calls either.
    """

    stop: tuple[str, ...] = ()
    tools: tuple[CallableTool, ...] = ()
    begins_in_thought: bool = False
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """More of the model's reasoning, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of a known tool begins. Calls are numbered from 0 and do not overlap."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text. All of one call's fragments are a JSON object."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The call is whole. One that the output's end cut short is never finished."""

    index: int


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string ended the output: the last piece."""

    stop: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A call that could not be read follows, as the text it was written in. For a warning."""

    why: str


Piece: TypeAlias = (
    TextPiece | ThoughtPiece | CallStarted | CallArguments | CallFinished | StopFound | Malformed
)


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A call of an answer: the id that the client was given, and JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """What an answer said, as the client was told it. `is_cut`: it was cut short by the client,
    who may have seen less of the text than this."""

    text: str = ""
    thought: str = ""
    calls: tuple[SampledCall, ...] = ()
    is_cut: bool = False
