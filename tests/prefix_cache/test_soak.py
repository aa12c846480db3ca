"""A long day: what is kept after thousands of requests is what was kept after the first hundred."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from statistics import mean

import pytest

from daemon.prefix_cache.nodes import Node
from mlx_backend.messages import CacheKind, Marks
from tests.heap import Newborn
from tests.prefix_cache.traffic import KINDS, Traffic, starts, text

REQUESTS = 2_000
SESSIONS = 60
GENERATION_TAIL = [50_001, 50_002, 50_003]


@dataclass
class Day:
    """Sessions in random order: turns, cancels, forks, resends, new starts, idle ones let go."""

    traffic: Traffic
    random: random.Random
    histories: dict[str, list[int]] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)

    def request(self, number: int) -> None:
        session = f"session-{self.random.randrange(SESSIONS)}"
        history = self.histories.get(session) or self.begun()
        if len(history) > 600:
            history = history[:100]
        if self.random.random() < 0.1 and self.histories:
            history = self.random.choice(list(self.histories.values()))
        body = [*history, *text(self.random.randrange(20, 80), number)]
        prompt = [*body, *GENERATION_TAIL]
        marks = Marks(head_end=100, last_user_end=len(body), stable_end=len(body))
        answer = text(self.random.randrange(5, 40), number + 1_000_000)
        cancelled = self.random.random() < 0.15
        self.used["reused"] += self.traffic.request(
            prompt,
            answer=answer,
            marks=marks,
            messages=starts(range(100, len(body), 40)),
            session=session,
            cancelled_at=self.random.randrange(1, len(prompt)) if cancelled else None,
        )
        self.used["prompt"] += len(prompt)
        self.histories[session] = history if cancelled else [*prompt, *answer]
        if self.random.random() < 0.05:
            self.let_go(f"session-{self.random.randrange(SESSIONS)}")

    def begun(self) -> list[int]:
        """A session that has gone on for a while already."""
        past = text(self.random.randrange(500), self.random.randrange(1 << 30))
        return [*text(100, self.random.randrange(3)), *past]

    def let_go(self, session: str) -> None:
        self.traffic.cache.let_go(session, self.random.choice(["idle", "reset", "sessions"]))
        self.traffic.check()


def random_limits(kind: CacheKind, seed: int) -> tuple[Traffic, random.Random]:
    chance = random.Random(seed)
    traffic = Traffic(
        kind,
        max_entries=chance.choice([None, 0, 8, 16]),
        max_bytes=chance.randrange(80_000, 160_000),
        max_arrays=chance.choice([150, 300, 400_000]),
        checkpoint_bytes=2_000,
        message_spacing=120,
        holds_leaves=chance.random() < 0.8,
        keeps_entries=chance.random() < 0.7,
        walks_every_step=False,
    )
    return traffic, chance


@KINDS
@pytest.mark.parametrize("seed", [2, 3, 5, 7])
def test_two_thousand_requests_leave_what_the_first_hundred_left(kind, seed):
    newborn = Newborn(Node)
    traffic, chance = random_limits(kind, seed)
    day = Day(traffic, chance)
    sizes = {"nodes": [], "index": [], "bytes": []}
    for number in range(REQUESTS):
        day.request(number)
        status = traffic.cache.status()
        sizes["nodes"].append(len(traffic.cache.entries()))
        sizes["index"].append(status.index_bytes)
        sizes["bytes"].append(status.bytes)
        if number % 100 == 0:
            traffic.cache.check()
    for name, size in sizes.items():
        early, late = mean(size[100:1_000]), mean(size[1_000:])
        assert late == pytest.approx(early, rel=0.05), name
    assert day.used["reused"] > day.used["prompt"] / 5
    nodes = len(newborn.of(Node))
    assert nodes == sizes["nodes"][-1] + 1, "a node, the root apart, outlives the tree"
