"""What the daemon asks of a backend. The real one runs mlx; the tests' one runs a script.

Threads: `LoadedModel.backend` and everything reached through it belongs to one thread, from load
to close. `PromptEncoder` may be called from any thread. An `OutputStream` belongs to whoever made
it. `ModelInfo` and the values of `messages` are frozen and go anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mlx_backend.host_arrays import HostArray
from mlx_backend.messages import (
    NO_EFFORT,
    AnswerForm,
    Constraint,
    Effort,
    Grammar,
    MemoryReport,
    ModelInfo,
    Piece,
    Prompt,
    SampledTurn,
    Sampling,
    TokenIds,
    TokenScore,
)


class Span(Protocol):
    """KV of the sliceable layers for an interval of tokens: immutable, a detached copy."""

    @property
    def length(self) -> int:
        """Tokens covered, ≥ 1."""

    @property
    def nbytes(self) -> int:
        """Bytes that freeing this span would give back."""

    @property
    def array_count(self) -> int:
        """Device arrays that this span keeps."""

    def split(self, at: int) -> tuple[Span, Span]:
        """The first `at` tokens and the rest, 0 < at < length. Copies one block at most.

        The halves share nothing with each other; whole blocks are handed on, not copied.
        """

    def join(self, after: Span) -> Span:
        """This span followed by `after`, the interval right behind it. Copies no full block."""

    def block_lengths(self) -> tuple[int, ...]:
        """Tokens of each storage block in order; a cut at a block's edge copies nothing."""

    def host_arrays(self, start: int, stop: int) -> tuple[HostArray, ...]:
        """The tokens [start, stop) of this span as the host's memory, 0 ≤ start < stop ≤ length.

        Nothing is copied. () where a model keeps nothing per token. The backend may be closed.
        """


class Checkpoint(Protocol):
    """State of the layers that cannot be cut, after exactly `length` tokens: immutable."""

    @property
    def length(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def array_count(self) -> int: ...

    def described(self) -> str:
        """What `Backend.import_checkpoint` has to know beside the arrays: a short JSON text."""

    def host_arrays(self) -> tuple[HostArray, ...]:
        """All of its state as the host's memory; nothing is copied. The backend may be closed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All it takes to restore a row of `length` tokens: spans end to end, and the checkpoint.

    `checkpoint` is None on sliceable models, where the last span may reach beyond `length`.
    """

    length: int
    spans: tuple[Span, ...]
    checkpoint: Checkpoint | None = None


class Row(Protocol):
    """The live state of one request, from `open_row` to `release`. Never shared with a span."""

    @property
    def length(self) -> int:
        """Tokens in the state. Decoding: the prompt and every token that `step` returned.

        Between `start_decoding` and the first `step` the prompt's last token may not be counted
        yet: whoever stores a row's state takes this number, not the number of tokens sent.
        """

    @property
    def room(self) -> int:
        """Tokens that fit into the buffers as they are, those in the state included."""

    @property
    def nbytes(self) -> int:
        """Bytes this row keeps, its room for more tokens included; of a batch its share."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token of one row; or why the row failed, in which case it has been released.

    `score` is there if the row's sampling asks for log-probabilities.
    """

    row: Row
    token: int
    error: str | None = None
    score: TokenScore | None = None


@dataclass(slots=True)
class Counters:
    """What the backend did since it was loaded; tests count with it. Tokens, steps, bytes."""

    chunks_read: int = 0
    tokens_read: int = 0
    steps: int = 0
    tokens_decoded: int = 0
    batch_copies: int = 0
    rows_grown: int = 0
    bytes_captured: int = 0
    bytes_restored: int = 0


class Backend(Protocol):
    """Array work. Every call comes from the thread that loaded the model and returns when done."""

    @property
    def counters(self) -> Counters: ...

    def open_row(self, snapshot: Snapshot | None, room: int) -> Row:
        """A fresh row, or a copy of `snapshot`, with buffers for at least `room` tokens in all.

        Raises RestoreFailed if the snapshot does not fit; then nothing is held.
        """

    def read(self, row: Row, tokens: TokenIds) -> None:
        """Run one chunk of prompt through the model; evaluated on return.

        Raises StepFailed; then the row must be released and nothing captured from it.
        """

    def capture_span(self, row: Row, start: int, stop: int) -> Span:
        """Copy the KV of tokens [start, stop), stop ≤ row.length, also while the row decodes.

        Copies that interval only. Raises StateMismatch if a layer disagrees with `row.length`.
        """

    def capture_checkpoint(self, row: Row) -> Checkpoint:
        """Copy the state of the layers that cannot be cut, as it is after `row.length` tokens."""

    def import_span(self, arrays: Sequence[HostArray], start: int, stop: int) -> Span:
        """Tokens [start, stop) of what a span's `host_arrays` gave, as a span, in every bit.

        Copies what it keeps. Raises RestoreFailed where this model's layers are others.
        """

    def import_checkpoint(
        self, length: int, described: str, arrays: Sequence[HostArray]
    ) -> Checkpoint:
        """The checkpoint after `length` tokens that gave these. Copies. Raises RestoreFailed."""

    def growth_bytes(self, row: Row, room: int) -> int:
        """What `grow_row` would add; rows that share a batch have the same room ahead of them."""

    def grow_row(self, row: Row, room: int) -> None:
        """Give the row buffers for at least `room` tokens in all, by one copy where they lack.

        Who decodes into a full row without asking is given room, but by copies uncounted here.
        Raises StepFailed as `read` does; of a row in a batch, as `step` does.
        """

    def start_decoding(
        self,
        row: Row,
        last_token: int,
        sampling: Sampling,
        context: TokenIds,
        first_index: int = 0,
    ) -> None:
        """Let `row` take part in `step` from now on.

        `last_token` is the prompt's last token, which has not been run; `context` is the whole
        prompt (for the penalties), of which the last `first_index` tokens were generated: the
        sampler goes on with the draw of that index, and a grammar goes on behind them.
        `sampling` was validated by the caller.
        Raises StepFailed as `read` does.
        """

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        """One token for every decoding row, in no particular order; [] when none decodes.

        The token is already part of its row's state. Rows come to share a batch only where that
        takes at most `spare_bytes` more than they have. Raises StepFailed: then every decoding
        row has been released and nothing may be captured from it.
        """

    def stop_decoding(self, row: Row) -> Sampled:
        """Release a decoding row, with the token that was drawn but is not in its state.

        `start_decoding` of a row that holds the same state, with that token as its last, goes on
        as if nothing had happened.
        """

    def compact(self) -> None:
        """Free what rows left behind in the batches that they shared. Raises StepFailed."""

    def release(self, row: Row) -> None:
        """Drop the row in whatever phase it is. Idempotent."""

    def memory(self) -> MemoryReport: ...

    def trim_pool(self) -> None:
        """Give pooled buffers back to the system; called when work pauses."""

    def close(self) -> None:
        """Drop everything and synchronise the device; nothing may be called afterwards."""


class OutputStream(Protocol):
    """Token ids of one answer to thought, text and calls: incremental, never raises.

    The pieces of an answer, joined, are the same however its ids were grouped. The text is cut
    before the first stop string; what may yet become one, or a mark, is held back. Nothing comes
    after `StopFound`.
    """

    def push(self, ids: Sequence[int]) -> Sequence[Piece]: ...

    def finish(self, *, is_cut: bool = False) -> Sequence[Piece]:
        """What was held back, with U+FFFD for an incomplete character.

        `is_cut`: the answer was cut short (by its token limit or the client) rather than ended by
        the model, so what is incomplete stays incomplete.
        """


ShouldStop: TypeAlias = Callable[[], bool]
"""Asked now and then, from the thread that works: True ends the work."""


def never() -> bool:
    return False


class PromptEncoder(Protocol):
    """Requests to token ids. Thread-safe. Raises PromptRejected: PromptTooLong early where a
    prompt cannot fit the context; and EncodingStopped soon after `should_stop` is True.
    """

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        should_stop: ShouldStop = never,
        effort: Effort = NO_EFFORT,
    ) -> Prompt:
        """Render with the model's chat template, with its generation tail.

        A message is `{"role", "content": str, …}` as templates know it; `tool_calls` entries are
        `{"id", "type": "function", "function": {"name", "arguments": dict | str}}`.
        Where an assistant's message means what was remembered, the sampled ids take its place.
        `effort` becomes the template's own switch, if it has one; `template_options` win.
        """

    def remember(self, prompt: Prompt, sampled: Sequence[int], turn: SampledTurn) -> None:
        """The answer to `prompt` consists of the ids `sampled`, stop ids left out."""

    def fill_in(self, before: str, after: str, should_stop: ShouldStop = never) -> Prompt:
        """A prompt for the text between two texts, by the tokenizer's own marks for that.

        Raises PromptRejected (its field is `suffix`) where the tokenizer has none.
        """

    def text(self, text: str, should_stop: ShouldStop = never) -> Prompt:
        """Encode plain text, with exactly one beginning-of-text token where the model wants it."""

    def ids(self, ids: Sequence[int]) -> Prompt:
        """Take ids as they are, each checked against the vocabulary."""


class LoadedModel(Protocol):
    """A model in memory, with what turns requests into ids and ids into text."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def backend(self) -> Backend: ...

    @property
    def prompts(self) -> PromptEncoder: ...

    @property
    def call_mark_ids(self) -> frozenset[int]:
        """Tokens that do nothing but open a call; without them no call can begin. May be empty."""

    def output(self, form: AnswerForm) -> OutputStream: ...

    def token_bytes(self, token: int) -> bytes:
        """What a token says, b"" for one that has no text. Any thread."""

    def compile(self, constraint: Constraint, prompt: Prompt) -> Grammar:
        """A constraint for the answer to `prompt`. Any thread but the event loop's: takes time.

        Raises ConstraintRejected for what cannot be enforced, or not within the limits.
        """
