"""What a policy plans for one prompt, as its reading starts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from daemon.prefix_cache.checkpoints import EntryKind, PromptEnd, Stop
from daemon.prefix_cache.policies import ByFunction, ByOptions, Plan, Reading
from mlx_backend.messages import CacheKind, Marks, Prompt, token_ids

MARKS = Marks(head_end=300, last_user_end=700, stable_end=760)
PROMPT = Prompt(token_ids(range(800)), MARKS)
every_caching_kind = pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])


def planned(offsets: Iterable[int], kind: CacheKind, start: int = 0, **more: object) -> Plan:
    policy = ByFunction(lambda start, prompt, opening, marks: offsets)
    return policy.plan(Reading(start, PROMPT, kind, **more))  # type: ignore[arg-type]


@every_caching_kind
def test_a_functions_offsets_are_taken_within_what_is_read(kind: CacheKind) -> None:
    plan = planned([900, -5, 800, 500, 0, 200, 799, 10**12], kind, start=200)
    assert plan.stops == (Stop(500, EntryKind.INTERVAL), Stop(799, EntryKind.PROMPT_END))
    assert (plan.at_start, plan.keeps_end) == (None, False)


@every_caching_kind
def test_what_a_function_wants_at_a_joint_stays_as_long_as_the_joint_is_worth(
    kind: CacheKind,
) -> None:
    kinds = {stop.offset: stop.kind for stop in planned([300, 700, 760, 400], kind).stops}
    assert kinds == {
        300: EntryKind.HEAD,
        400: EntryKind.INTERVAL,
        700: EntryKind.USER_END,
        760: EntryKind.STABLE_END,
    }


@every_caching_kind
def test_forks_that_others_wait_for_are_added_to_what_a_function_wants(kind: CacheKind) -> None:
    plan = planned([], kind, awaited=(450,))
    assert plan.stops == (Stop(450, EntryKind.FORK),)


def test_without_reuse_no_function_is_asked() -> None:
    assert planned([300], CacheKind.UNCACHEABLE) == Plan((), None, keeps_end=False)


@pytest.mark.parametrize(
    ("prompt_end", "is_opening", "start", "kind", "at_start"),
    [
        (PromptEnd.EVERY, False, 799, CacheKind.SLICEABLE, EntryKind.PROMPT_END),
        (PromptEnd.INITIAL, True, 799, CacheKind.SLICEABLE, EntryKind.PROMPT_END),
        (PromptEnd.INITIAL, False, 799, CacheKind.SLICEABLE, None),
        (PromptEnd.INITIAL, True, 798, CacheKind.SLICEABLE, None),
        (PromptEnd.INITIAL, True, 784, CacheKind.CHECKPOINTED, EntryKind.PROMPT_END),
        (PromptEnd.INITIAL, True, 783, CacheKind.CHECKPOINTED, None),
    ],
)
def test_what_was_restored_is_itself_to_be_kept_where_it_serves_for_the_prompts_end(
    prompt_end: PromptEnd,
    is_opening: bool,
    start: int,
    kind: CacheKind,
    at_start: EntryKind | None,
) -> None:
    reading = Reading(start, PROMPT, kind, is_opening=is_opening)
    plan = ByOptions(prompt_end).plan(reading)
    assert plan.at_start == at_start
    wants_end = is_opening or prompt_end is PromptEnd.EVERY
    assert wants_end == bool(at_start or plan.stops)
    assert plan.keeps_end == (prompt_end is PromptEnd.EVERY)
