"""Everything that can happen between rows, tree and disk, in any order: answers stay right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from daemon.turns import Phase, Turn
from mlx_backend.messages import CacheKind
from tests.engine.harness import every_caching_kind, words
from tests.engine.slow_disk import SlowDisk, restarted
from tests.state_files import flip_a_bit, state_files

TOKEN_BYTES = 16
BUDGET = 6_500 * (TOKEN_BYTES + 4) + 7_000 * TOKEN_BYTES
STEPS = 700


class Life:
    """Random deeds on one folder, through several restarts."""

    def __init__(self, folder: Path, kind: CacheKind, seed: int) -> None:
        self._folder = folder
        self._kind = kind
        self._random = random.Random(seed)
        self._trunks = [words(2_600, 1), words(1_900, 2)]
        self._turns: list[Turn] = []
        self.restored = 0
        self._begin()

    def live(self) -> None:
        deeds = {
            self._submit: 6,
            self._work: 60,
            self._read: 30,
            self._write: 12,
            self._save: 6,
            self._cancel: 2,
            self._damage: 1,
            self._wait: 1,
            self._forget: 0.3,
            self._restart: 1,
        }
        for deed in self._random.choices([*deeds], [*deeds.values()], k=STEPS):
            deed()
            self._check()
        self._restart()

    def _begin(self) -> None:
        self._disk: SlowDisk = restarted(
            self._folder, self._kind, budget_bytes=BUDGET, file_seconds=1e-3
        )
        self._disk.cache.watch(self._disk.archive.save)

    def _prompt(self) -> list[int]:
        trunk = self._random.choice(self._trunks)
        cut = self._random.choice([300, 1_023, 1_024, 1_500, 2_048, len(trunk)])
        return trunk[:cut] + words(self._random.choice([1, 30, 700]), self._random.randrange(5))

    def _submit(self) -> None:
        if len(self._disk.inference.turns) < 12:
            most = self._random.choice([1, 5, 50])
            self._turns.append(self._disk.submit(self._prompt(), most))

    def _work(self) -> None:
        for _ in range(self._random.randrange(1, 12)):
            if self._disk.inference.has_work:
                self._disk.once()

    def _read(self) -> None:
        self._disk.read(self._random.randrange(1, 4))

    def _write(self) -> None:
        self._disk.write()

    def _save(self) -> None:
        states = list(self._disk.cache.states())
        if states:
            self._disk.archive.save(self._random.choice(states))

    def _cancel(self) -> None:
        if self._disk.inference.turns:
            self._disk.inference.cancel(self._random.choice(self._disk.inference.turns))

    def _damage(self) -> None:
        files = state_files(self._folder)
        if files:
            file = self._random.choice(files)
            flip_a_bit(file, self._random.randrange(file.stat().st_size))

    def _wait(self) -> None:
        self._disk.clock.now += 20
        self._disk.inference.fetches.expire(self._disk.clock())

    def _forget(self) -> None:
        self._disk.tier.forget()

    def _restart(self) -> None:
        for _ in range(5):
            self._disk.write()
            self._disk.finish()
        for turn in self._turns:
            assert turn.phase in (Phase.DONE, Phase.CANCELLED), (turn.phase, turn.error)
            self._disk.expect_right(turn)
            self.restored += turn.from_disk.tokens
        self._turns.clear()
        assert not self._disk.inference.rows.reserved_bytes
        self._begin()

    def _check(self) -> None:
        self._disk.cache.check()
        held = self._disk.inference.rows.reserved_bytes + self._disk.cache.status().bytes
        assert held <= BUDGET


@pytest.mark.parametrize("seed", [0, 2])
@every_caching_kind
def test_whatever_happens_answers_are_right_and_memory_is_kept_to(
    kind: CacheKind, seed: int, tmp_path: Path
) -> None:
    life = Life(tmp_path, kind, seed)
    life.live()
    assert life.restored > 500, "nothing came from disk"
