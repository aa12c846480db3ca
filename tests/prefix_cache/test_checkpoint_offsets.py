"""Where reading stops to capture, by the prompt's marks, the tree's forks and the options."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.prefix_cache.checkpoints import EntryKind, PromptEnd, checkpoint_offsets
from mlx_backend.messages import CacheKind, Marks, Prompt, token_ids

HEAD, USER, STABLE, END = 300, 700, 760, 799


def prompt(length: int = 800, marks: Marks | None = None) -> Prompt:
    given_marks = marks or Marks(head_end=HEAD, last_user_end=USER, stable_end=STABLE)
    return Prompt(token_ids(range(length)), given_marks)


def stops(start: int = 0, asked: Prompt | None = None, **options: object) -> list[tuple[int, str]]:
    options.setdefault("cache_kind", CacheKind.CHECKPOINTED)
    found = checkpoint_offsets(start, asked or prompt(), **options)
    return [(stop.offset, stop.kind) for stop in found]


def test_a_prompt_is_captured_at_its_joints():
    assert stops() == [
        (HEAD, EntryKind.HEAD),
        (USER, EntryKind.USER_END),
        (STABLE, EntryKind.STABLE_END),
        (END, EntryKind.PROMPT_END),
    ]


def test_what_was_restored_is_not_captured_again():
    assert stops(USER) == [(STABLE, EntryKind.STABLE_END), (END, EntryKind.PROMPT_END)]
    assert stops(END - 1) == []


def test_joints_less_than_the_gap_after_what_was_restored_are_left_out():
    assert stops(USER - 15)[0] == (STABLE, EntryKind.STABLE_END)
    assert stops(USER - 16)[0] == (USER, EntryKind.USER_END)


def test_of_two_close_joints_the_earlier_serves_and_takes_the_stronger_kind():
    marks = Marks(last_user_end=795, stable_end=795)
    assert stops(0, prompt(marks=marks)) == [(795, EntryKind.USER_END)]
    near_the_user = Marks(last_user_end=512 + 9)
    asked = prompt(marks=near_the_user)
    assert stops(0, asked, interval=512)[0] == (512, EntryKind.USER_END)


def test_the_gap_is_counted_from_the_one_kept_not_from_one_left_out():
    asked = prompt(marks=Marks(head_end=600, last_user_end=610, stable_end=620))
    assert stops(0, asked)[:2] == [(600, EntryKind.HEAD), (620, EntryKind.STABLE_END)]


def test_a_prompt_without_a_template_is_captured_before_tokens_that_may_merge():
    assert stops(0, prompt(marks=Marks(is_raw=True))) == [(792, EntryKind.STABLE_END)]


def test_where_the_prompt_leaves_the_tree_is_a_fork():
    assert (450, EntryKind.FORK) in stops(300, common=450)
    assert EntryKind.FORK not in dict(stops(300, common=300)).values()


def test_offsets_that_others_wait_for_are_captured_on_every_kind():
    assert (450, EntryKind.FORK) in stops(awaited=[450])
    sliceable = stops(awaited=[450], cache_kind=CacheKind.SLICEABLE)
    assert sliceable == [(450, EntryKind.FORK), (END, EntryKind.PROMPT_END)]


def test_a_model_that_can_be_cut_is_captured_at_the_prompts_end_only():
    assert stops(cache_kind=CacheKind.SLICEABLE, common=450) == [(END, EntryKind.PROMPT_END)]


def test_a_model_without_reuse_is_never_captured():
    assert stops(cache_kind=CacheKind.UNCACHEABLE, awaited=[450], interval=100) == []


@pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])
def test_initial_captures_the_end_of_an_opening_prompt_only(kind):
    ends = {EntryKind.USER_END, EntryKind.STABLE_END, EntryKind.PROMPT_END}
    initial = {"cache_kind": kind, "prompt_end": PromptEnd.INITIAL}
    assert not ends & set(dict(stops(opening=False, **initial)).values())
    assert stops(opening=True, **initial) == stops(cache_kind=kind)


@pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])
def test_of_a_later_prompt_initial_captures_only_what_others_wait_for_and_the_interval(kind):
    later = {
        "opening": False,
        "prompt_end": PromptEnd.INITIAL,
        "common": 450,
        "cache_kind": kind,
    }
    assert stops(**later) == []
    assert stops(**later, awaited=[450]) == [(450, EntryKind.FORK)]
    assert stops(**later, interval=350)[-1] == (700, EntryKind.INTERVAL)


def test_an_interval_adds_its_multiples():
    found = [at for at, kind in stops(150, interval=200) if kind is EntryKind.INTERVAL]
    assert found == [200, 400, 600]


@settings(deadline=None)
@given(
    st.integers(1, 400),
    st.integers(0, 400),
    st.builds(Marks, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.booleans()),
    st.lists(st.integers(0, 500)),
    st.one_of(st.none(), st.integers(1, 100)),
    st.sampled_from([CacheKind.SLICEABLE, CacheKind.CHECKPOINTED]),
)
def test_offsets_ascend_lie_behind_the_start_and_leave_a_token_to_run(
    length, start, marks, awaited, interval, kind
):
    gap = 1 if kind is CacheKind.SLICEABLE else 16
    asked = prompt(length, marks)
    found = checkpoint_offsets(start, asked, cache_kind=kind, awaited=awaited, interval=interval)
    offsets = [start, *(stop.offset for stop in found)]
    assert all(after - before >= gap for before, after in pairwise(offsets))
    assert len(found) == 0 or offsets[-1] < length
