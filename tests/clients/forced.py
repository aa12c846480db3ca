"""A real model whose tokens are forced: real rows, spans and snapshots, and a script's words.

A decoding row reads the script's next token as if it had been drawn, so that its state is that of
a model which said so. Everything but the draw is the model's own: prompts, output, memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from mlx_backend.interface import Counters, Row, Sampled, Snapshot
from mlx_backend.loading import MlxModel
from mlx_backend.messages import Sampling, TokenIds, token_ids
from tests.clients.script import TURN_END, Actor, Step


@dataclass
class _Saying:
    """A decoding row and what is left of its answer."""

    row: Row
    ids: list[int]
    step: Step

    def draw(self) -> int:
        return self.ids.pop(0)


class ForcedBackend:
    """Implements `interface.Backend` around a real one."""

    def __init__(self, inner: Any, actor: Actor, tokenizer: Tokenizer) -> None:
        self._inner = inner
        self._actor = actor
        self._tokenizer = tokenizer
        self._end_id: int = tokenizer.token_to_id(TURN_END)
        self._decoding: list[_Saying] = []

    def __getattr__(self, name: str) -> Any:
        """What has nothing to do with decoding is the real backend's."""
        return getattr(self._inner, name)

    @property
    def counters(self) -> Counters:
        return self._inner.counters

    def open_row(self, snapshot: Snapshot | None, room: int) -> Row:
        return self._inner.open_row(snapshot, room)

    def start_decoding(
        self,
        row: Row,
        last_token: int,
        sampling: Sampling,
        context: TokenIds,
        first_index: int = 0,
    ) -> None:
        prompt = context[: len(context) - first_index].tolist()
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        ids = [*self._tokenizer.encode(self._actor.answer(text)).ids, self._end_id]
        self._inner.read(row, token_ids([last_token]))
        self._decoding.append(_Saying(row, ids[first_index:], self._actor.step(text)))

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        if not self._decoding:
            return []
        time.sleep(max(saying.step.token_seconds for saying in self._decoding))
        self.counters.steps += 1
        return [self._sampled(saying) for saying in list(self._decoding)]

    def _sampled(self, saying: _Saying) -> Sampled:
        token = saying.draw() if saying.ids else self._end_id
        self._inner.read(saying.row, token_ids([token]))
        self.counters.tokens_decoded += 1
        return Sampled(saying.row, token)

    def stop_decoding(self, row: Row) -> Sampled:
        [saying] = [each for each in self._decoding if each.row is row]
        token = saying.ids[0] if saying.ids else self._end_id
        self.release(row)
        return Sampled(row, token)

    def compact(self) -> None:
        """Rows share nothing."""

    def release(self, row: Row) -> None:
        self._decoding = [each for each in self._decoding if each.row is not row]
        self._inner.release(row)


def forced(model: MlxModel, actor: Actor, tokenizer: Tokenizer) -> MlxModel:
    """`model`, saying what the actor says."""
    return replace(model, backend=ForcedBackend(model.backend, actor, tokenizer))
