"""The words of the engine: what is asked of it, what it answers, and the record it leaves.

Frozen values without mlx, HTTP or threads. Offsets and counts are tokens, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from daemon.errors import DaemonError
from daemon.status import ReadReason
from mlx_backend.messages import Prompt, Sampling, TokenScore

DEFAULT_SAMPLING = Sampling(temperature=1.0)
"""Where request and model are silent: the APIs' own documented defaults."""


class FinishReason(StrEnum):
    """Why a generation ended well. A stop *string* is found by the caller, who then finishes it."""

    STOP = "stop"  # one of the model's stop ids was sampled, or the caller had all it wanted
    LENGTH = "length"  # max_tokens or the context's end was reached
    REPETITION = "repetition"  # it had begun to say the same for ever
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. `max_tokens` ≥ 1 and prompt + max_tokens ≤ context size + 1;
    `is_limited`: they are the client's own limit, not just what fits.

    `session` is a label and a hint for retention; token ids alone decide what is reused. Without
    it the request opens a session of its own. `family` is what related sessions have in common.
    `model` is the key of the model's source; "" is the one that the daemon starts with.
    """

    id: str
    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    session: str | None = None
    family: str | None = None
    is_limited: bool = True
    model: str = ""

    @property
    def is_anonymous(self) -> bool:
        return self.session is None


@dataclass(frozen=True, slots=True)
class Usage:
    """prompt = reused + read, once the prompt was read to its end; generated without a stop id.

    `thought` of the generated ones were reasoning, give or take the marks around it.
    """

    prompt: int
    reused: int = 0
    read: int = 0
    generated: int = 0
    thought: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """Its turn has come: `reused` tokens were restored, the rest is being read, for `reason`."""

    reused: int
    prompt: int
    reason: ReadReason | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A chunk was read: `done` of `prompt` tokens are in the row, the reused ones included."""

    done: int
    prompt: int


@dataclass(frozen=True, slots=True)
class Generated:
    """Sampled tokens in order, stop ids left out. `scores`: one for each, or none at all."""

    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation that ended well."""

    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a generation that did not."""

    error: DaemonError
    usage: Usage


GenerationEvent: TypeAlias = Started | Progress | Generated | Finished | Failed
