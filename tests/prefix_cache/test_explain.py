"""The sentence that says why tokens were read."""

from __future__ import annotations

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.explain import why_read
from mlx_backend.messages import CacheKind
from tests.prefix_cache.traffic import KINDS, Traffic, bytes_of, text


def sentence(traffic: Traffic, prompt: list[int], **options: bool) -> str:
    return why_read(traffic.match(prompt), len(prompt), **options)


@KINDS
def test_a_first_prompt_was_never_seen(kind):
    said = sentence(Traffic(kind), text(100, 1))
    assert said == "All 100 tokens read: nothing stored begins with the same token."


@KINDS
def test_a_continued_prompt_says_what_was_restored(kind):
    traffic = Traffic(kind)
    traffic.store(text(1_100, 1))
    said = sentence(traffic, [*text(1_100, 1), 5])
    assert said == "1 token read: restored 1,100 tokens, all that is stored of this prompt."


def test_a_fork_between_checkpoints_names_the_last_one():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    traffic.store(text(50, 1))
    traffic.store(text(100, 1))
    said = sentence(traffic, [*text(100, 1)[:80], *text(20, 2)])
    assert said == (
        "50 tokens read: the first 80 tokens are stored, but the last point "
        "a row can be restored from is after 50."
    )


@KINDS
def test_an_evicted_prompt_is_told_from_a_new_one(kind):
    traffic = Traffic(kind, max_entries=1)
    traffic.store(text(100, 1))
    traffic.store(text(100, 2))
    assert "100 tokens could be restored once" in sentence(traffic, [*text(100, 1), 5])
    assert "nothing stored" in sentence(traffic, [*text(100, 3), 5])


def test_a_shortened_prompt_says_what_is_left_of_it():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=250, nodes=2))
    traffic.store(text(200, 1))
    traffic.store(text(100, 2))
    said = sentence(traffic, [*text(200, 1), 5])
    assert said.endswith("200 tokens could be restored once, but were evicted down to 128.")


def test_a_thinned_checkpoint_counts_as_evicted():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=1)
    traffic.store(text(100, 1))
    traffic.store(text(200, 1))
    assert "100 tokens could be restored once" in sentence(traffic, [*text(100, 1), 5])


def test_an_evicted_end_close_behind_a_fork_is_not_taken_for_anothers():
    """A turn often ends in the same few tokens at the same offset."""
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2, minimum_gap=1)
    ends_alike, session = text(10, 9), "main"
    traffic.store(text(100, 1), EntryKind.USER_END, session)
    traffic.store([*text(100, 1), *ends_alike], EntryKind.TURN_END, session)
    traffic.store(text(100, 3), EntryKind.USER_END, "other")
    assert "could be restored" in sentence(traffic, [*text(100, 1), *ends_alike, 5])
    assert "nothing stored" in sentence(traffic, [*text(100, 2), *ends_alike, 5])


def test_only_the_last_evictions_are_remembered():
    traffic = Traffic(CacheKind.SLICEABLE, max_entries=1)
    for seed in range(300):
        traffic.store(text(70, seed))
    assert "could be restored once" in sentence(traffic, [*text(70, 298), 5])
    assert "nothing stored" in sentence(traffic, [*text(70, 1), 5])


def test_nothing_is_blamed_on_a_prompt_when_reuse_is_off():
    said = "All 100 tokens read: nothing is reused with this model and these limits."
    assert sentence(Traffic(CacheKind.UNCACHEABLE), text(100, 1)) == said
    assert sentence(Traffic(CacheKind.SLICEABLE, max_entries=0), text(100, 1)) == said
    assert why_read(None, 100) == said


def test_a_failed_restore_is_named():
    traffic = Traffic(CacheKind.SLICEABLE)
    traffic.store(text(90, 1))
    said = sentence(traffic, [*text(90, 1), *text(10, 2)], restore_failed=True)
    assert said == "All 100 tokens read: restoring 90 tokens failed."
