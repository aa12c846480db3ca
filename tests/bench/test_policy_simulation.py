"""The project's targets for what is read and kept, on the engine's policies without a model."""

from __future__ import annotations

from functools import cache

import pytest

from daemon.bench.report import SCENARIO_LIMIT, TOTAL_LIMIT
from daemon.bench.scenarios import SCENARIOS, Sizes, all_scenarios
from daemon.bench.texts import Author
from daemon.bench.traffic import Request, Scenario
from daemon.prefix_cache.checkpoints import MESSAGE_SPACING
from mlx_backend.messages import CacheKind
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from mlx_backend.tiny_tokenizer import TEMPLATES, make_tokenizer, token_count
from tests.bench.qwen_like import QwenLikePrompts
from tests.bench.simulation import Result, Simulation, Tongue

KINDS = (CacheKind.SLICEABLE, CacheKind.CHECKPOINTED)
TRAFFIC = {scenario.name: scenario for scenario in all_scenarios(Sizes())}
DAY = [scenario for scenario in TRAFFIC.values() if not scenario.is_interrupted]
QWEN_LIKE = Tongue(QwenLikePrompts(), tuple(b"abcdefgh"), lambda ids: bytes(ids).decode(), True)


@cache
def played(kind: CacheKind, name: str) -> Result:
    """The scenario on a fresh engine."""
    return Simulation(kind, QWEN_LIKE).play(TRAFFIC[name])


@cache
def tiny(template: str) -> Tongue:
    """The prompts of the benchmark's tiny models."""
    encoder = MlxPromptEncoder(
        make_tokenizer(), JinjaTemplate(TEMPLATES[template], {}), Vocabulary(token_count())
    )
    letters = encoder.text("abcdefgh").tokens.tolist()
    return Tongue(encoder, tuple(letters), lambda ids: make_tokenizer().decode(list(ids)))


def named(word: str) -> str:
    (name,) = (name for name in SCENARIOS if word in name)
    return name


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_scenario_reads_hardly_more_than_it_must(kind: CacheKind, name: str) -> None:
    result = played(kind, name)
    assert result.read / result.floor <= SCENARIO_LIMIT, result.requests


@pytest.mark.parametrize("kind", KINDS)
def test_all_scenarios_together_read_no_more_than_they_must(kind: CacheKind) -> None:
    results = [played(kind, name) for name in SCENARIOS]
    read, least = (sum(getattr(r, count) for r in results) for count in ("read", "floor"))
    assert read / least <= TOTAL_LIMIT


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_day_in_one_engine_reads_no_more_under_any_template(
    kind: CacheKind, template: str
) -> None:
    simulation = Simulation(kind, tiny(template))
    results = [simulation.play(scenario) for scenario in DAY]
    assert sum(r.read for r in results) / sum(r.floor for r in results) <= TOTAL_LIMIT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_tokens", [256, 2048])
def test_what_a_cancelled_read_has_read_is_not_read_again(
    kind: CacheKind, chunk_tokens: int
) -> None:
    simulation = Simulation(kind, QWEN_LIKE, chunk_tokens=chunk_tokens)
    cut, again, _ = simulation.play(TRAFFIC[named("60 %")]).requests
    assert 0.6 * cut.prompt <= cut.read < cut.prompt
    assert again.reused == cut.read, "whole chunks were read, all of them are kept"


@pytest.mark.parametrize("kind", KINDS)
def test_sub_agents_started_at_once_read_their_head_once(kind: CacheKind) -> None:
    result = played(kind, named("at once"))
    children = result.requests[:4]
    assert sum(child.reused == 0 for child in children) == 1
    assert all(child.reused > 2500 for child in children if child.reused)


def test_twenty_agents_on_one_head_keep_each_token_once() -> None:
    result = played(CacheKind.SLICEABLE, named("memory"))
    status = result.cache.status()
    assert status.tokens == result.distinct
    assert status.bytes / (result.distinct * 1_000) <= 1.05


@pytest.mark.parametrize("kind", KINDS)
def test_side_calls_do_not_push_out_the_session(kind: CacheKind) -> None:
    last = played(kind, named("side calls")).requests[-1]
    assert last.label == "main again"
    assert last.read <= last.floor * SCENARIO_LIMIT + 16


def test_a_day_with_room_for_a_hundred_checkpoints_still_reads_hardly_more() -> None:
    """A checkpoint as large as 3,000 tokens of KV, as large hybrid models have them: they are
    thinned and evicted all day, and those that later prompts need are still there."""
    simulation = Simulation(
        CacheKind.CHECKPOINTED,
        tiny("thinking"),
        span_token_bytes=24_000,
        checkpoint_bytes=75_000_000,
        max_bytes=8_000_000_000,
    )
    results = [simulation.play(scenario) for scenario in DAY]
    status = simulation.cache.status()
    assert status.thinned_checkpoints > 100
    assert status.evicted_entries > 0
    assert sum(r.read for r in results) / sum(r.floor for r in results) <= SCENARIO_LIMIT


def cold_history(author: Author, messages: int) -> tuple[dict[str, str], ...]:
    """A session from elsewhere: system text, and a user and an assistant in turn."""
    said = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": author.prose(f"said {n}", 700)}
        for n in range(messages)
    ]
    return ({"role": "system", "content": author.prose("instructions", 1_500)}, *said)


@pytest.mark.parametrize("taken_back", [2, 10, 28])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_history_that_was_read_at_once_can_be_taken_back(
    kind: CacheKind, template: str, taken_back: int
) -> None:
    history = cold_history(Sizes().author("cold"), 31)
    shorter = (*history[: -taken_back - 1], {"role": "user", "content": "something else"})
    waves = ((Request("cold", history),), (Request("taken back", shorter),))
    simulation = Simulation(kind, tiny(template))
    cold, back = simulation.play(Scenario("taken back", waves)).requests
    assert cold.read == cold.prompt > 4 * MESSAGE_SPACING
    again = MESSAGE_SPACING if kind is CacheKind.CHECKPOINTED else 0
    assert back.read <= back.floor + again
    entries = [entry.kind for entry in simulation.cache.entries()]
    assert entries.count("message_end") == (4 if kind is CacheKind.CHECKPOINTED else 0)
