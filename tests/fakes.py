"""A model that follows a script, with state that carries its tokens.

Spans, checkpoints and rows hold the very token ids that were read into them, and by default the
next token is a function of all of them: an answer equals the cold run's only if the state is
right, on every kind of cache the script pretends to have. A span and a checkpoint that disagree
fail an assertion at once. Time passes only where the script says so.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlx_backend.errors import (
    ConstraintRejected,
    PromptRejected,
    RestoreFailed,
    StateMismatch,
    StepFailed,
)
from mlx_backend.host_arrays import HostArray
from mlx_backend.interface import (
    Counters,
    OutputStream,
    Sampled,
    ShouldStop,
    Snapshot,
    never,
)
from mlx_backend.messages import (
    NO_EFFORT,
    AnswerForm,
    CacheKind,
    Constraint,
    Effort,
    Grammar,
    Marks,
    MemoryReport,
    MessageStart,
    ModelInfo,
    Prompt,
    SampledTurn,
    Sampling,
    TokenIds,
    TokenScore,
    token_ids,
)
from mlx_backend.output import ByteDecoder, TextOutput
from mlx_backend.output.formats import find_format
from tests.fake_state import (
    CHECKPOINT_BYTES,
    SPAN_TOKEN_BYTES,
    FakeCheckpoint,
    FakeSpan,
    tokens_of,
)

TURN_START, TURN_END, END_OF_TEXT = 257, 258, 259
CALL_MARK, FILL_BEFORE, FILL_AFTER, FILL_BETWEEN = 260, 261, 262, 263
HERMES = find_format("<think></think><tool_call>", ())
VOCABULARY_SIZE = 300


def hashed_reply(state: Sequence[int], index: int) -> int:
    """A letter that depends on every token of the state; ends the turn after 40 tokens."""
    if index >= 40:
        return TURN_END
    return 97 + zlib.crc32(np.asarray(state, dtype=np.int32).tobytes()) % 26


def fixed_reply(ids: Sequence[int], then: int = TURN_END) -> Callable[[Sequence[int], int], int]:
    """Says `ids`, whatever the prompt was, and ends the turn."""
    return lambda state, index: ids[index] if index < len(ids) else then


def echo_reply(marker: str = "CODE-") -> Callable[[Sequence[int], int], int]:
    """Says the last word of the state that begins with `marker`, and ends the turn."""

    def reply(state: Sequence[int], index: int) -> int:
        prompt = state[: len(state) - index]
        text = bytes(t for t in prompt if t < 256).decode("utf-8", "replace")
        word = marker + text.rsplit(marker, 1)[1].split()[0] if marker in text else ""
        answer = word.encode()
        return answer[index] if index < len(answer) else TURN_END

    return reply


def scripted_score(token: int, sampling: Sampling | None) -> TokenScore | None:
    """What the scripted model says of a token it drew: it was sure, and others came behind."""
    if sampling is None or sampling.alternatives is None:
        return None
    others = [(token + 1 + place) % VOCABULARY_SIZE for place in range(sampling.alternatives)]
    behind = [(other, -3.0 - place) for place, other in enumerate(others)]
    return TokenScore(token, -0.1, ((token, -0.1), *behind)[: sampling.alternatives])


@dataclass
class Faults:
    """How many of the coming calls fail, in each place; a test may set them at any time."""

    loads: int = 0
    restores: int = 0
    reads: int = 0
    steps: int = 0
    rows: int = 0
    captures: int = 0
    imports: int = 0
    growths: int = 0
    steps_before: int = 0
    reads_before: int = 0
    unexpected_steps: int = 0  # an exception that no contract allows

    def take(self, name: str) -> bool:
        waits = f"{name}_before"
        left = getattr(self, name)
        if left <= 0:
            return False
        if getattr(self, waits, 0) > 0:
            setattr(self, waits, getattr(self, waits) - 1)
            return False
        setattr(self, name, left - 1)
        return True


@dataclass
class Script:
    """What the model says and how long everything takes. Times are seconds.

    `yields`: even where a step takes no time, other threads run meanwhile.
    """

    reply: Callable[[Sequence[int], int], int] = hashed_reply
    chunk_seconds: float = 0.0
    read_token_seconds: float = 0.0
    step_seconds: float = 0.0
    load_seconds: float = 0.0
    yields: bool = True
    block_tokens: int = 1024
    span_token_bytes: int = SPAN_TOKEN_BYTES
    checkpoint_bytes: int = CHECKPOINT_BYTES
    context_size: int = 200_000
    takes_constraints: bool = False
    can_fill_in: bool = False
    disk_refusal: str = ""
    faults: Faults = field(default_factory=Faults)


class FakeRow:
    """Implements `interface.Row`; `state` are the tokens read and generated so far."""

    def __init__(
        self, state: Sequence[int], room: int, token_bytes: int, checkpoint_bytes: int = 0
    ) -> None:
        self.state = list(state)
        self.room = room
        self.token_bytes = token_bytes
        self.checkpoint_bytes = checkpoint_bytes
        self.sampling: Sampling | None = None
        self.generated = 0
        self.is_released = False
        self.is_broken = False

    @property
    def length(self) -> int:
        return len(self.state)

    @property
    def nbytes(self) -> int:
        return max(self.room, self.length) * self.token_bytes + self.checkpoint_bytes


class ScriptedBackend:
    """Implements `interface.Backend`. `log` holds one tuple per call: its name, then its counts."""

    def __init__(self, kind: CacheKind, script: Script) -> None:
        self.kind = kind
        self.script = script
        self.counters = Counters()
        self.log: list[tuple[Any, ...]] = []
        self.rows: list[FakeRow] = []
        self.is_closed = False
        self._thread = threading.get_ident()
        self._decoding: list[FakeRow] = []

    def open_row(self, snapshot: Snapshot | None, room: int) -> FakeRow:
        self._enter()
        state: tuple[int, ...] = ()
        if snapshot is not None:
            if self.script.faults.take("restores"):
                raise RestoreFailed("the script says so")
            state = self._restored(snapshot)
            self.counters.bytes_restored += len(state) * self.script.span_token_bytes
        is_checkpointed = self.kind is CacheKind.CHECKPOINTED
        whole = self.script.checkpoint_bytes if is_checkpointed else 0
        row = FakeRow(state, room, self.script.span_token_bytes, whole)
        self.rows.append(row)
        self.log.append(("open", len(state), room))
        return row

    def _restored(self, snapshot: Snapshot) -> tuple[int, ...]:
        tokens = tuple(t for span in snapshot.spans for t in span.tokens)  # type: ignore[attr-defined]
        assert len(tokens) >= snapshot.length, "the spans do not reach the snapshot's length"
        tokens = tokens[: snapshot.length]
        if self.kind is CacheKind.SLICEABLE:
            assert snapshot.checkpoint is None
            return tokens
        assert snapshot.checkpoint is not None, "a row of this kind needs a checkpoint"
        assert snapshot.checkpoint.tokens == tokens, "checkpoint and spans disagree"  # type: ignore[attr-defined]
        return tokens

    def read(self, row: FakeRow, tokens: TokenIds) -> None:
        self._enter(row)
        self.log.append(("read", len(tokens), row.length))
        self._spend(self.script.chunk_seconds + self.script.read_token_seconds * len(tokens))
        if self.script.faults.take("reads"):
            row.is_broken = True
            row.state.extend(int(t) for t in tokens[: len(tokens) // 2])
            raise StepFailed("the script says so")
        row.state.extend(int(t) for t in tokens)
        self.counters.chunks_read += 1
        self.counters.tokens_read += len(tokens)

    def capture_span(self, row: FakeRow, start: int, stop: int) -> FakeSpan:
        self._enter(row)
        assert 0 <= start < stop <= row.length
        if self.script.faults.take("captures"):
            raise StateMismatch("the script says so")
        self.log.append(("capture_span", start, stop))
        span = FakeSpan.of(
            row.state[start:stop], self.script.block_tokens, self.script.span_token_bytes
        )
        self.counters.bytes_captured += span.nbytes
        return span

    def capture_checkpoint(self, row: FakeRow) -> FakeCheckpoint:
        self._enter(row)
        assert self.kind is CacheKind.CHECKPOINTED
        self.log.append(("capture_checkpoint", row.length))
        self.counters.bytes_captured += self.script.checkpoint_bytes
        return FakeCheckpoint(tuple(row.state), self.script.checkpoint_bytes)

    def import_span(self, arrays: Sequence[HostArray], start: int, stop: int) -> FakeSpan:
        self._enter()
        script = self.script
        if script.faults.take("imports"):
            raise RestoreFailed("the script says so")
        self.log.append(("import_span", start, stop))
        assert script.span_token_bytes >= 4, "too few bytes to tell one token from another"
        if [array.dtype for array in arrays] != ["U8"]:
            raise RestoreFailed("a span of another model")
        if arrays[0].shape[3] != script.span_token_bytes or arrays[0].shape[2] < stop:
            raise RestoreFailed(f"a span of {arrays[0].shape}")
        tokens = tokens_of(arrays[0].joined()[:, :, start:stop])
        return FakeSpan.of(tokens, script.block_tokens, script.span_token_bytes)

    def import_checkpoint(
        self, length: int, described: str, arrays: Sequence[HostArray]
    ) -> FakeCheckpoint:
        self._enter()
        if self.script.faults.take("imports"):
            raise RestoreFailed("the script says so")
        self.log.append(("import_checkpoint", length))
        if self.kind is not CacheKind.CHECKPOINTED or [a.dtype for a in arrays] != ["I32"]:
            raise RestoreFailed("a checkpoint of another model")
        tokens = tuple(int(token) for token in arrays[0].joined())
        if len(tokens) != length:
            raise RestoreFailed(f"a checkpoint after {len(tokens)} tokens, not {length}")
        try:
            nbytes = int(json.loads(described)["nbytes"])
        except (ValueError, KeyError) as error:
            raise RestoreFailed(f"described as {described!r}") from error
        return FakeCheckpoint(tokens, nbytes)

    def growth_bytes(self, row: FakeRow, room: int) -> int:
        self._enter(row)
        return max(0, room - max(row.room, row.length)) * row.token_bytes

    def grow_row(self, row: FakeRow, room: int) -> None:
        self._enter(row)
        if room <= row.room:
            return
        if self.script.faults.take("growths"):
            row.is_broken = True
            raise StepFailed("the script says so")
        self.log.append(("grow", row.length, room))
        row.room = room
        self.counters.rows_grown += 1

    def start_decoding(
        self,
        row: FakeRow,
        last_token: int,
        sampling: Sampling,
        context: TokenIds,
        first_index: int = 0,
    ) -> None:
        self._enter(row)
        assert [*row.state, last_token] == context.tolist(), "the row does not hold its prompt"
        row.state.append(last_token)
        row.sampling = sampling
        row.generated = first_index
        self._decoding.append(row)
        self.log.append(("start_decoding", row.length))

    def stop_decoding(self, row: FakeRow) -> Sampled:
        self._enter(row)
        self._decoding.remove(row)
        self.release(row)
        token = self.script.reply(row.state, row.generated)
        return Sampled(row, token, score=scripted_score(token, row.sampling))

    def _spend(self, seconds: float) -> None:
        if seconds or self.script.yields:
            time.sleep(seconds)

    def compact(self) -> None:
        self._enter()

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        self._enter()
        if not self._decoding:
            return []
        self._spend(self.script.step_seconds)
        self.log.append(("step", len(self._decoding)))
        if self.script.faults.take("unexpected_steps"):
            raise RuntimeError("an exception nobody expected")
        if self.script.faults.take("steps"):
            for row in self._decoding:
                row.is_released = row.is_broken = True
            self._decoding.clear()
            raise StepFailed("the script says so")
        self.counters.steps += 1
        return [self._sample(row) for row in list(self._decoding)]

    def _sample(self, row: FakeRow) -> Sampled:
        if self.script.faults.take("rows"):
            row.is_broken = True
            self.release(row)
            return Sampled(row, -1, "the script says so")
        token = self.script.reply(row.state, row.generated)
        row.state.append(token)
        row.generated += 1
        self.counters.tokens_decoded += 1
        return Sampled(row, token, score=scripted_score(token, row.sampling))

    def release(self, row: FakeRow) -> None:
        self._enter()
        if not row.is_released:
            self.log.append(("release", row.length))
        row.is_released = True
        if row in self._decoding:
            self._decoding.remove(row)

    def memory(self) -> MemoryReport:
        held = sum(row.nbytes for row in self.rows if not row.is_released)
        return MemoryReport(active_bytes=held, pooled_bytes=0, peak_bytes=held)

    def trim_pool(self) -> None:
        self._enter()

    def close(self) -> None:
        self._enter()
        self.is_closed = True

    @property
    def live_rows(self) -> int:
        return sum(not row.is_released for row in self.rows)

    def _enter(self, row: FakeRow | None = None) -> None:
        assert threading.get_ident() == self._thread, "array work on a foreign thread"
        assert not self.is_closed, "the backend was closed"
        if row is not None:
            assert not row.is_released, "the row was released"
            assert not row.is_broken, "a row of a failed step may only be released"


class BytePrompts:
    """Implements `interface.PromptEncoder` in ChatML form: one token per byte, turns by ids.

    `efforts` and `remembered` are what it was told, the newest last.
    """

    def __init__(self, *, can_fill_in: bool = False) -> None:
        self.can_fill_in = can_fill_in
        self.efforts: list[Effort] = []
        self.remembered: list[tuple[Prompt, tuple[int, ...], SampledTurn]] = []

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        should_stop: ShouldStop = never,
        effort: Effort = NO_EFFORT,
    ) -> Prompt:
        self.efforts.append(effort)
        head = list(messages[:1]) if messages and messages[0]["role"] == "system" else []
        ids: list[int] = []
        if tools:
            ids += self._turn("tools", json.dumps(list(tools)))
        head_end = len(ids)
        starts: list[MessageStart] = []
        for index, message in enumerate(messages):
            starts.append(MessageStart(len(ids), index, message["role"]))
            ids += self._message(index, message)
            if index < len(head):
                head_end = len(ids)
        stable_end = len(ids)
        ids += [TURN_START, *b"assistant\n"]
        marks = Marks(head_end=head_end, last_user_end=stable_end, stable_end=stable_end)
        return Prompt(token_ids(ids), marks, tuple(starts))

    def _message(self, index: int, message: Mapping[str, Any]) -> list[int]:
        content, calls = message.get("content") or "", message.get("tool_calls")
        try:
            return self._turn(message["role"], content + (json.dumps(calls) if calls else ""))
        except UnicodeEncodeError as error:
            field_name = f"messages[{index}].content"
            raise PromptRejected("not valid Unicode text", field_name) from error

    @staticmethod
    def _turn(role: str, content: str) -> list[int]:
        return [TURN_START, *f"{role}\n{content}".encode(), TURN_END, *b"\n"]

    def remember(self, prompt: Prompt, sampled: Sequence[int], turn: SampledTurn) -> None:
        """Only noted: rendered again, an answer has the same bytes, so the same tokens."""
        self.remembered.append((prompt, tuple(sampled), turn))

    def fill_in(self, before: str, after: str, should_stop: ShouldStop = never) -> Prompt:
        if not self.can_fill_in:
            raise PromptRejected("this model cannot fill in", "suffix")
        sides = [FILL_BEFORE, *before.encode(), FILL_AFTER, *after.encode(), FILL_BETWEEN]
        return Prompt(token_ids(sides), Marks(is_raw=True))

    def text(self, text: str, should_stop: ShouldStop = never) -> Prompt:
        return self.ids(list(text.encode()))

    def ids(self, ids: Sequence[int]) -> Prompt:
        if not ids:
            raise PromptRejected("the prompt is empty", "prompt")
        for index, token in enumerate(ids):
            if not 0 <= token < VOCABULARY_SIZE:
                message = f"token id {token} is outside the vocabulary of {VOCABULARY_SIZE}"
                raise PromptRejected(message, f"prompt[{index}]")
        return Prompt(token_ids(ids), Marks(is_raw=True))


class ScriptedModel:
    """Implements `interface.LoadedModel`. Make it on the engine's thread, where models load."""

    def __init__(self, script: Script | None = None, kind: CacheKind = CacheKind.SLICEABLE) -> None:
        self.script = script or Script()
        if self.script.faults.take("loads"):
            raise RuntimeError("the script says that loading fails")
        time.sleep(self.script.load_seconds)
        self.backend = ScriptedBackend(kind, self.script)
        self.prompts = BytePrompts(can_fill_in=self.script.can_fill_in)
        self.info = ModelInfo(
            name="scripted",
            path="/models/scripted",
            identity=f"scripted-{kind}",
            cache_kind=kind,
            cache_classes=("FakeCache",),
            vocabulary_size=VOCABULARY_SIZE,
            context_size=self.script.context_size,
            stop_ids=frozenset({TURN_END, END_OF_TEXT}),
            weight_bytes=1_000_000,
            span_token_bytes=self.script.span_token_bytes,
            checkpoint_bytes=0 if kind is CacheKind.SLICEABLE else self.script.checkpoint_bytes,
            disk_refusal=self.script.disk_refusal,
        )

    call_mark_ids: frozenset[int] = frozenset({CALL_MARK})

    def output(self, form: AnswerForm) -> OutputStream:
        """Thoughts and calls in the Hermes form, spelled in bytes like all the rest."""
        decoder = ByteDecoder(self.token_bytes)
        return TextOutput(decoder, form.stop) if form.is_raw else HERMES.output(decoder, form)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if 0 <= token < 256 else b""

    def compile(self, constraint: Constraint, prompt: Prompt) -> Grammar:
        """Nothing is enforced: the script has to say what fits."""
        if not self.script.takes_constraints:
            raise ConstraintRejected("this model takes no constraints")
        return Grammar(constraint, "compiled")


def filler(length: int, seed: int) -> str:
    """About `length` tokens of deterministic words for a byte tokenizer; differs per seed."""
    random = np.random.default_rng(seed)
    letters = random.integers(97, 123, size=length, dtype=np.uint8)
    letters[::6] = 32
    return letters.tobytes().decode()
