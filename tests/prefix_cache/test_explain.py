"""Why tokens were read: the code, the place, and the sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.explain import FromDisk, departure, read_reason
from daemon.prefix_cache.matching import Match
from daemon.prefix_cache.tombstones import Cause
from daemon.status import REASONS, ReadReason
from mlx_backend.messages import CacheKind, MessageStart, Prompt, TokenIds, token_ids
from tests.prefix_cache.traffic import KINDS, Traffic, bytes_of, text

SESSION = "main"
NOTHING_FROM_DISK = FromDisk()


def match_of(traffic: Traffic, tokens: TokenIds, session: str = SESSION) -> Match:
    match = traffic.cache.match(tokens, session)
    traffic.cache.release(match)
    return match


def reason(
    traffic: Traffic,
    tokens: list[int],
    session: str = SESSION,
    messages: tuple[MessageStart, ...] = (),
    restore_failed: bool = False,
    from_disk: FromDisk = NOTHING_FROM_DISK,
) -> ReadReason:
    prompt = Prompt(token_ids(tokens), messages=messages)
    match = match_of(traffic, prompt.tokens, session)
    found = read_reason(match, prompt, restore_failed=restore_failed, from_disk=from_disk)
    assert found.code in REASONS
    return found


@KINDS
def test_a_first_prompt_was_never_seen(kind):
    found = reason(Traffic(kind), text(100, 1))
    assert (found.code, found.left_at) == ("first_seen", 0)
    assert found.sentence == "All 100 tokens read: nothing stored begins like this prompt."


@KINDS
def test_a_template_opening_in_common_is_still_never_seen(kind):
    traffic = Traffic(kind)
    traffic.store([1, 2, 3, *text(100, 1)], session="other")
    found = reason(traffic, [1, 2, 3, *text(100, 2)])
    assert (found.code, found.left_at) == ("first_seen", 3)
    assert found.sentence.endswith("nothing stored begins like this prompt, but for 3.")


@KINDS
def test_a_continued_prompt_says_what_was_restored(kind):
    traffic = Traffic(kind)
    traffic.store(text(1_100, 1))
    found = reason(traffic, [*text(1_100, 1), 5])
    assert (found.code, found.left_at) == ("continues", 1_100)
    assert found.sentence == (
        "1 token read: restored 1,100 tokens, all that is stored of this prompt."
    )


@KINDS
def test_what_came_from_disk_is_said_with_what_it_took(kind):
    traffic = Traffic(kind)
    traffic.store(text(1_100, 1))
    goes_on = [*text(1_100, 1), 5]
    assert reason(traffic, goes_on, from_disk=FromDisk(1_000, 1_234_567_890, 0.84)).sentence == (
        "1 token read: restored 1,100 tokens, 1,000 of them from disk (1.2 GB in 840 ms), "
        "all that is stored of this prompt."
    )
    assert "restored 1,100 tokens, all of them from disk (12.3 kB in 10 ms), all that" in (
        reason(traffic, goes_on, from_disk=FromDisk(1_100, 12_345, 0.01)).sentence
    )
    parts = [*text(1_050, 1), *text(9, 2)]
    said = reason(traffic, parts, from_disk=FromDisk(1_000, 999, 2.0, left=1_059)).sentence
    if kind is CacheKind.SLICEABLE:
        assert "restored 1,050 tokens, 1,000 of them from disk (999 bytes in 2.0 s); after" in said
    assert said.endswith(" More is on disk, up to token 1,059, which would have taken longer.")


@KINDS
def test_what_could_not_be_had_from_disk_is_the_reason_why_it_was_read(kind):
    traffic = Traffic(kind)
    found = reason(traffic, text(1_100, 1), from_disk=FromDisk(lost=1_099))
    assert found.code == "restore_failed"
    assert found.sentence == (
        "All 1,100 tokens read: nothing stored begins like this prompt. More was on disk, up to "
        "token 1,099, which could not be read."
    )


@KINDS
def test_a_prompt_that_is_stored_whole_continues(kind):
    traffic = Traffic(kind)
    traffic.store(text(99, 1))
    traffic.store(text(200, 1))
    assert reason(traffic, text(100, 1)).code == "continues"


@KINDS
def test_a_prompt_that_goes_another_way_names_the_message_where_it_does(kind):
    traffic = Traffic(kind)
    traffic.store(text(80, 1))
    traffic.store([*text(80, 1), *text(20, 3)])
    messages = (MessageStart(0, 0, "system"), MessageStart(60, 1, "user"))
    found = reason(traffic, [*text(80, 1), *text(20, 2)], messages=messages)
    assert (found.code, found.left_at) == ("diverged", 80)
    assert (found.message_index, found.message_role) == (1, "user")
    assert found.sentence == (
        "20 tokens read: restored 80 tokens; after 80, in message 1 (user), "
        "what is stored goes on differently."
    )


def test_a_checkpoint_close_to_the_fork_is_as_good_as_one_there():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    traffic.store(text(80, 1))
    traffic.store(text(200, 1))
    assert reason(traffic, [*text(200, 1)[:95], *text(20, 2)]).code == "diverged"
    assert reason(traffic, [*text(200, 1)[:96], *text(20, 2)]).code == "no_checkpoint"


def test_a_fork_between_checkpoints_names_the_last_one():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    traffic.store(text(50, 1))
    traffic.store(text(100, 1))
    found = reason(traffic, [*text(100, 1)[:80], *text(20, 2)])
    assert (found.code, found.left_at, found.nearest) == ("no_checkpoint", 80, 50)
    assert found.sentence == (
        "50 tokens read: the first 80 tokens are stored, but the last point "
        "a row can be restored from is after 50."
    )


@pytest.mark.parametrize(
    ("starts", "place"),
    [((60,), "message 0 (user)"), ((90,), "what precedes its first message"), ((), None)],
)
def test_the_place_is_told_as_far_as_there_are_messages(starts, place):
    traffic = Traffic(CacheKind.CHECKPOINTED)
    traffic.store(text(50, 1))
    traffic.store(text(100, 1))
    traffic.store([*text(100, 1), *text(20, 3)])
    messages = tuple(MessageStart(start, 0, "user") for start in starts)
    early = reason(traffic, [*text(100, 1)[:80], *text(20, 2)], messages=messages).sentence
    late = reason(traffic, [*text(100, 1)[:52], *text(60, 2)], messages=messages).sentence
    assert (f"are stored, up to {place}, but" in early) == (place is not None)
    if not starts:
        assert "after 52, what is stored goes on differently" in late


@KINDS
def test_an_evicted_prompt_is_told_from_a_new_one(kind):
    traffic = Traffic(kind, max_entries=1)
    traffic.store(text(100, 1))
    traffic.store(text(100, 2))
    traffic.now += 12.4
    found = reason(traffic, [*text(100, 1), 5])
    assert (found.code, found.evicted_by, found.evicted_seconds) == ("evicted", "entries", 12.4)
    assert found.sentence == (
        "101 tokens read: 100 tokens could be restored once, but were evicted 12 s ago "
        "(more entries than allowed), which left 0."
    )
    assert reason(traffic, [*text(100, 3), 5]).code == "first_seen"


@pytest.mark.parametrize(("sent", "remembered"), [(1_010, 936), (900, 744), (300, None)])
def test_an_evicted_prompt_is_known_without_its_answer_and_with_another(sent, remembered):
    traffic = Traffic(CacheKind.SLICEABLE)
    traffic.store(text(1_000, 1))
    traffic.cache.clear()
    found = reason(traffic, [*text(1_000, 1)[: min(sent, 970)], *text(50, 2)])
    if remembered is None:
        assert found.code == "first_seen"
    else:
        assert found.evicted_by == "reset"
        assert f"{remembered:,} tokens could be restored once" in found.sentence


@pytest.mark.parametrize(("why", "words"), [("idle", "its session was idle"), ("reset", "reset")])
@KINDS
def test_what_a_session_let_go_of_is_evicted_by_that(kind, why, words):
    traffic = Traffic(kind, max_entries=0, holds_leaves=True)
    traffic.store(text(100, 1), session=SESSION, holder=SESSION, shared=False)
    traffic.cache.let_go(SESSION, why)
    traffic.now += 7200
    found = reason(traffic, [*text(100, 1), 5])
    assert (found.code, found.evicted_by) == ("evicted", why)
    assert words in found.sentence
    assert "2 h ago" in found.sentence


def test_a_shortened_prompt_says_what_is_left_of_it():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=250, nodes=2))
    traffic.store(text(200, 1))
    traffic.store(text(100, 2))
    found = reason(traffic, [*text(200, 1), 5])
    assert (found.code, found.evicted_by) == ("evicted", "bytes")
    assert found.sentence.endswith("evicted 0 s ago (for want of memory), which left 128.")


def test_a_thinned_checkpoint_counts_as_evicted():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=1)
    traffic.store(text(100, 1))
    traffic.store(text(200, 1))
    assert reason(traffic, [*text(100, 1), 5]).code == "evicted"


def test_an_evicted_end_close_behind_a_fork_is_not_taken_for_anothers():
    """A turn often ends in the same few tokens at the same offset."""
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2, minimum_gap=1)
    ends_alike, session = text(10, 9), "main"
    traffic.store(text(100, 1), EntryKind.USER_END, session)
    traffic.store([*text(100, 1), *ends_alike], EntryKind.TURN_END, session)
    traffic.store(text(100, 3), EntryKind.USER_END, "other")
    assert reason(traffic, [*text(100, 1), *ends_alike, 5]).code == "evicted"
    assert reason(traffic, [*text(100, 2), *ends_alike, 5]).code == "first_seen"


def test_only_the_last_evictions_are_remembered():
    traffic = Traffic(CacheKind.SLICEABLE, max_entries=1)
    for seed in range(300):
        traffic.store(text(70, seed))
    assert reason(traffic, [*text(70, 298), 5]).code == "evicted"
    assert reason(traffic, [*text(70, 1), 5]).code == "first_seen"


@KINDS
def test_what_was_too_large_was_not_kept(kind):
    traffic = Traffic(kind, max_bytes=bytes_of(tokens=10, nodes=1))
    traffic.store(text(500, 1))
    found = reason(traffic, [*text(500, 1), 5])
    assert found.code == "not_kept"
    assert "500 tokens of it were read before, but did not fit" in found.sentence


def test_nothing_is_blamed_on_a_prompt_when_reuse_is_off():
    found = reason(Traffic(CacheKind.UNCACHEABLE), text(100, 1))
    assert found.code == "no_reuse"
    assert found.sentence == (
        "All 100 tokens read: nothing is reused with this model and these limits."
    )


@KINDS
def test_a_failed_restore_is_named(kind):
    traffic = Traffic(kind)
    traffic.store(text(90, 1))
    found = reason(traffic, [*text(90, 1), *text(10, 2)], restore_failed=True)
    assert found.code == "restore_failed"
    assert found.sentence == "All 100 tokens read: restoring 90 tokens failed."


def test_every_way_to_lose_something_has_words():
    for cause in Cause:
        match = Match(length=0, common=0, lost=10)
        match.evicted_by, match.evicted_seconds = cause, 200.0
        if cause is not Cause.NOT_KEPT:
            match.why = match.why.EVICTED
            assert "3 min ago (" in read_reason(match, Prompt(token_ids([1]))).sentence


# The texts on both sides


def played(traffic: Traffic, tokens: list[int], session: str) -> None:
    """A turn whose prompt and answer are `tokens`, held by its session."""
    traffic.request(tokens[:-1], answer=tokens[-1:], session=session)


def sides(traffic: Traffic, tokens: list[int], session: str) -> tuple[list[int], list[int]] | None:
    prompt = Prompt(token_ids(tokens))
    found = departure(match_of(traffic, prompt.tokens, session), prompt)
    return None if found is None else (found.stored.tolist(), found.sent.tolist())


@KINDS
def test_a_session_that_leaves_its_own_history_shows_both_sides(kind):
    traffic = Traffic(kind, holds_leaves=True)
    head, first, second = text(50, 1), text(100, 2), text(100, 3)
    played(traffic, [*head, *first], SESSION)
    assert sides(traffic, [*head, *second], SESSION) == (first[:16], second[:16])
    assert sides(traffic, [*head, *second[:3]], SESSION) == (first[:16], second[:3])
    assert sides(traffic, second, SESSION) == (head[:16], second[:16])


def test_a_few_tokens_lead_to_the_difference():
    traffic = Traffic(CacheKind.SLICEABLE, holds_leaves=True)
    head = text(50, 1)
    played(traffic, [*head, *text(100, 2)], SESSION)
    for common in (50, 3, 0):
        prompt = Prompt(token_ids([*head[:common], *text(100, 3)]))
        found = departure(match_of(traffic, prompt.tokens), prompt)
        assert found is not None
        assert found.lead.tolist() == head[:common][-8:]


@KINDS
def test_a_session_sees_its_own_history_not_what_others_did_there_since(kind):
    traffic = Traffic(kind, holds_leaves=True)
    head = text(50, 1)
    for number, session in enumerate([SESSION, "second", "third"]):
        played(traffic, [*head, *text(100, 10 + number)], session)
    own, second = text(100, 10)[:16], text(100, 11)[:16]
    sent = [*head, *text(20, 7)]
    assert sides(traffic, sent, SESSION) == (own, sent[50:66])
    assert sides(traffic, sent, "second") == (second, sent[50:66])
    assert sides(traffic, sent, "nobody") is None


@KINDS
def test_a_session_that_goes_on_with_its_history_shows_nothing(kind):
    traffic = Traffic(kind, holds_leaves=True)
    played(traffic, text(100, 1), SESSION)
    played(traffic, [*text(100, 1), *text(20, 2)], "other")
    assert sides(traffic, [*text(100, 1), *text(30, 3)], SESSION) is None
    assert sides(traffic, text(60, 1), SESSION) is None


@KINDS
def test_a_session_whose_live_leaf_is_gone_is_known_by_its_entries(kind):
    traffic = Traffic(kind, holds_leaves=True)
    head, first, second = text(50, 1), text(100, 2), text(100, 3)
    played(traffic, [*head, *first], SESSION)
    traffic.cache.let_go(SESSION, "idle")
    assert sides(traffic, [*head, *second], SESSION) == (first[:16], second[:16])
    assert sides(traffic, [*head, *second], "other") is None


@KINDS
def test_a_known_session_that_changes_its_first_words_has_diverged(kind):
    traffic = Traffic(kind, holds_leaves=True)
    played(traffic, [1, 2, 3, *text(100, 1)], SESSION)
    changed = [1, 2, 3, *text(100, 2)]
    assert reason(traffic, changed, SESSION).code == "diverged"
    assert reason(traffic, changed, "other").code == "first_seen"


@KINDS
@pytest.mark.parametrize("was_idle", [False, True])
def test_a_session_sees_where_it_left_its_history_though_another_went_there_before(kind, was_idle):
    traffic = Traffic(kind, holds_leaves=True)
    head, rest = text(50, 1), text(100, 2)
    early, late = [[*head, time, *rest] for time in (1201, 1202)]
    played(traffic, [*early, *text(30, 3)], SESSION)
    played(traffic, [*late, *text(30, 4)], "other")
    if was_idle:
        traffic.cache.let_go(SESSION, "idle")
    sent = [*late, *text(30, 5)]
    assert sides(traffic, sent, SESSION) == (early[50:66], late[50:66])
    assert sides(traffic, sent, "other") == (text(30, 4)[:16], text(30, 5)[:16])
    assert sides(traffic, sent, "nobody") is None
    messages = (MessageStart(0, 0, "system"), MessageStart(120, 1, "user"))
    found = reason(traffic, sent, SESSION, messages)
    assert (found.left_at, found.message_index) == (151, 1)
    own = " Its session's own history goes on differently after 50, in message 0 (system)."
    assert found.sentence.endswith(own)
    assert own not in reason(traffic, sent, "other", messages).sentence
    assert own in reason(traffic, late, SESSION, messages).sentence


@KINDS
def test_a_history_left_at_the_end_of_its_last_turn_was_not_left(kind):
    traffic = Traffic(kind, holds_leaves=True)
    own = text(100, 1)
    played(traffic, own, SESSION)
    played(traffic, [*own, *text(50, 2)], "other")
    sent = [*own, *text(50, 2)[:30], *text(20, 3)]
    assert sides(traffic, sent, SESSION) is None
    assert "own history" not in reason(traffic, sent, SESSION).sentence


@KINDS
def test_of_several_histories_the_one_with_most_in_common_is_shown(kind):
    traffic = Traffic(kind, holds_leaves=True)
    nearest = [*text(50, 1), *text(100, 2)]
    played(traffic, nearest, SESSION)
    played(traffic, [*text(50, 1)[:20], *text(60, 3)], SESSION)
    played(traffic, [*nearest[:90], *text(60, 4)], "other")
    sent = [*nearest[:90], *text(60, 4)[:40], *text(20, 5)]
    assert sides(traffic, sent, SESSION) == (nearest[90:106], sent[90:106])


@KINDS
def test_a_first_line_that_changed_is_shown_though_another_session_shares_more_of_it(kind):
    traffic = Traffic(kind, holds_leaves=True)
    own, changed = [1, 2, 3, *text(100, 1)], [1, 2, 3, *text(100, 2)]
    played(traffic, own, SESSION)
    played(traffic, [*changed[:5], *text(100, 3)], "other")
    assert sides(traffic, changed, SESSION) == (own[3:19], changed[3:19])
    assert reason(traffic, changed, SESSION).code == "diverged"
    assert reason(traffic, changed, "new").code == "first_seen"
    unlike = text(100, 4)
    played(traffic, [*unlike[:50], *text(60, 5)], "other")
    assert sides(traffic, unlike, SESSION) == (own[:16], unlike[:16])


# What it costs


class Counting(np.ndarray):
    """Token ids that count how many of them were looked at."""

    looked_at = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        Counting.looked_at += np.size(found)
        return found


def costly(tokens: Sequence[int]) -> TokenIds:
    return np.asarray(tokens, dtype=np.int32).view(Counting)


def test_a_reason_looks_at_a_few_tokens_of_the_longest_prompt():
    traffic = Traffic(CacheKind.SLICEABLE, holds_leaves=True)
    played(traffic, text(100_000, 1), SESSION)
    starts = tuple(MessageStart(at, at // 500, "user") for at in range(0, 100_000, 500))
    changed = [*text(100_000, 1)[:99_000], *text(1_000, 2)]
    match = match_of(traffic, token_ids(changed))
    prompt = Prompt(costly(changed), messages=starts)
    Counting.looked_at = 0
    assert read_reason(match, prompt).message_index == 198
    found = departure(match, prompt)
    assert found is not None
    assert len(found.sent) == 16
    for kept in (found.lead, found.sent):
        assert kept.base is None, "a record that keeps 16 tokens keeps a prompt"
    assert Counting.looked_at < 20_000
