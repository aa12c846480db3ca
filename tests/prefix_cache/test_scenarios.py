"""What agents do, and what has to be reused: case numbers are those of the field's bug reports."""

from __future__ import annotations

import pytest

from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, Marks, token_ids
from tests.prefix_cache.traffic import KINDS, Conversation, Traffic, bytes_of, text

HEAD = 1_000
LEAVES = pytest.mark.parametrize(
    "leaves",
    [
        pytest.param({}, id="entries alone"),
        pytest.param({"holds_leaves": True}, id="entries and live leaves"),
        pytest.param({"holds_leaves": True, "keeps_entries": False}, id="later turns held only"),
    ],
)


@KINDS
def test_each_turn_of_a_growing_conversation_continues_where_the_last_one_ended(kind):
    conversation = Conversation(Traffic(kind), "main", text(HEAD, 1), seed=1)
    ends = [0]
    for _ in range(12):
        assert conversation.turn() == ends[-1]
        ends.append(len(conversation.head) + len(conversation.history))


@KINDS
def test_thinking_that_the_template_drops_costs_the_answer_only(kind):
    conversation = Conversation(Traffic(kind), "main", text(HEAD, 1), seed=1, thinking_length=400)
    conversation.turn()
    for _ in range(5):
        previous = len(conversation.prompt()[0]) - 60 - 3 - 40
        assert conversation.turn() >= previous - 16


@KINDS
@pytest.mark.parametrize("thinking", [0, 400])
@pytest.mark.parametrize("session", ["main", None])
def test_thirty_turns_live_on_three_checkpoints(kind, thinking, session):
    room = bytes_of(tokens=20_000, nodes=10, checkpoints=3)
    conversation = Conversation(
        Traffic(kind, max_bytes=room), "", text(HEAD, 1), seed=1, thinking_length=thinking
    )
    previous = 16
    for turn in range(30):
        conversation.session = session or f"request-{turn}"
        prompt = len(conversation.prompt()[0])
        assert conversation.turn() >= previous - 16
        previous = prompt
        assert conversation.traffic.cache.status().checkpoints <= 3
    if kind is CacheKind.CHECKPOINTED:
        assert conversation.traffic.cache.status().entries <= 3
        head = conversation.traffic.match([*conversation.head, 1])
        assert head.length == HEAD


@KINDS
def test_with_room_every_checkpoint_stays(kind):
    traffic = Traffic(kind)
    conversation = Conversation(traffic, "main", text(HEAD, 1), seed=1)
    for _ in range(10):
        conversation.turn()
    status = traffic.cache.status()
    assert (status.evicted_entries, status.thinned_checkpoints) == (0, 0)
    assert status.checkpoints == (21 if kind is CacheKind.CHECKPOINTED else 0)


@KINDS
def test_a_merge_at_the_cut_of_a_raw_prompt_costs_eight_tokens(kind):
    traffic = Traffic(kind)
    prompt = text(800, 3)
    traffic.request(prompt, answer=text(30, 4))
    merged = [*prompt[:-3], 7, 8, 9, 10]
    assert traffic.request(merged, answer=text(30, 5)) >= 800 - 8


@KINDS
def test_siblings_share_their_head(kind):
    traffic = Traffic(kind)
    head = text(3_000, 4)
    first = Conversation(traffic, "first", head, seed=1)
    second = Conversation(traffic, "second", head, seed=2)
    first.turn()
    assert second.turn() == 3_000


def test_a_fork_that_no_mark_foretold_is_restorable_for_the_third_who_takes_it():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    shared = text(700, 1)
    reused = [traffic.request([*shared, *text(300, seed)]) for seed in (2, 3, 4)]
    assert reused == [0, 0, 700]


@KINDS
def test_a_window_that_wrapped_is_restored_by_appending_only(kind):
    traffic = Traffic(kind)
    prompt = text(500, 1)
    traffic.request(prompt)
    assert traffic.request([*prompt, *text(40, 2)]) >= 480


@KINDS
def test_equal_and_shorter_prompts_leave_a_token_to_run(kind):
    traffic = Traffic(kind)
    conversation = Conversation(traffic, "main", text(HEAD, 1), seed=1)
    conversation.turn()
    shorter, marks = conversation.prompt()
    conversation.turn()
    longer, _ = conversation.prompt()
    for _ in range(3):
        reused = traffic.request(shorter, marks=marks)
        assert reused == len(shorter) - (1 if kind is CacheKind.SLICEABLE else 3)
    edited = [*longer[:1_050], 3, *longer[1_060:]]
    assert traffic.request(edited) == (1_050 if kind is CacheKind.SLICEABLE else HEAD)


@KINDS
def test_one_token_prompts_match_nothing(kind):
    traffic = Traffic(kind, minimum_gap=1)
    assert traffic.store([5])
    assert traffic.match([5]).length == 0
    assert traffic.match([5, 6]).length == 1


@KINDS
def test_after_a_failed_restore_reuse_grows_again(kind):
    traffic = Traffic(kind)
    conversation = Conversation(traffic, "main", text(HEAD, 1), seed=1)
    for _ in range(3):
        conversation.turn()
    match = traffic.match(conversation.prompt()[0])
    traffic.cache.reject(match)
    traffic.cache.check()
    traffic.cache.release(match)
    assert traffic.match(conversation.prompt()[0]).length < match.length
    assert traffic.cache.status().failed_restores == 1
    conversation.turn()
    for _ in range(4):
        end = len(conversation.head) + len(conversation.history)
        assert conversation.turn() == end


@KINDS
def test_rejecting_until_nothing_is_left_ends(kind):
    traffic = Traffic(kind)
    conversation = Conversation(traffic, "main", text(HEAD, 1), seed=1)
    for _ in range(4):
        conversation.turn()
    prompt = conversation.prompt()[0]
    for _ in range(20):
        match = traffic.match(prompt)
        if not match.length:
            break
        traffic.cache.reject(match)
        traffic.cache.check()
    assert traffic.match(prompt).length == 0


@KINDS
def test_a_cancelled_read_is_taken_up_where_it_was_left(kind):
    traffic = Traffic(kind)
    prompt = text(6_000, 1)
    traffic.request(prompt, cancelled_at=3_584)
    assert traffic.request(prompt) == 3_584
    assert traffic.request([*prompt, *text(50, 2)]) >= 6_000 - 8


@KINDS
def test_two_answers_to_one_prompt_can_both_be_continued(kind):
    traffic = Traffic(kind)
    prompt = text(500, 1)
    for seed in (2, 3):
        traffic.request(prompt, answer=text(100, seed))
    for seed in (2, 3):
        assert traffic.match([*prompt, *text(100, seed), 1]).length == 600


@KINDS
def test_a_conversation_sees_nothing_of_one_that_only_begins_like_it(kind):
    traffic = Traffic(kind)
    first = text(200, 1)
    traffic.request(first, answer=text(30, 2))
    other = [*first[:20], *text(180, 3)]
    assert traffic.request(other, answer=text(30, 4)) <= 20
    assert traffic.match([*other, *text(30, 4), 1]).length == 230
    assert traffic.match([*first, *text(30, 2), 1]).length == 230


@KINDS
def test_ten_conversations_on_one_head_never_get_each_others_state(kind):
    traffic = Traffic(kind)
    head = text(2_000, 1)
    conversations = [Conversation(traffic, str(n), head, seed=n) for n in range(10)]
    for _ in range(3):
        for conversation in conversations:
            conversation.turn()
    for conversation in conversations:
        end = 2_000 + len(conversation.history)
        assert traffic.match(conversation.prompt()[0]).length == end


@KINDS
def test_state_that_disagrees_with_its_key_is_refused_and_counted(kind):
    traffic = Traffic(kind)
    key = token_ids(text(100, 1))
    short = key[:-1]
    refused = [(traffic.span(short), traffic.checkpoint(key)), (None, traffic.checkpoint(key))]
    if kind is CacheKind.CHECKPOINTED:
        refused += [(traffic.span(key), traffic.checkpoint(short)), (traffic.span(key), None)]
    for span, checkpoint in refused:
        assert not traffic.cache.insert(
            key, span=span, checkpoint=checkpoint, kind=EntryKind.TURN_END, conversation="a"
        )
        traffic.cache.check()
    assert traffic.cache.status().skipped_captures == len(refused)
    assert traffic.match(key).length == 0


def ring(traffic: Traffic, sessions: int) -> list[Conversation]:
    head = text(HEAD, 1)
    return [
        Conversation(traffic, f"agent-{n}", head, seed=n + 1, user_length=200, answer_length=100)
        for n in range(sessions)
    ]


def side_call(traffic: Traffic, number: int) -> int:
    head, user = text(40, 900), text(60, 1_000 + number)
    prompt = [*head, *user, 50_001]
    marks = Marks(head_end=40, last_user_end=100, stable_end=100)
    return traffic.request(prompt, answer=text(8, number), marks=marks, session=f"title-{number}")


@KINDS
def test_three_title_requests_do_not_cost_the_main_session_its_turn(kind):
    traffic = Traffic(kind, max_entries=4)
    main = Conversation(traffic, "main", text(200, 1), seed=1, user_length=3_000)
    main.turn()
    for number in range(3):
        side_call(traffic, number)
    boundary = main.last_boundary
    assert main.turn() >= boundary


@KINDS
@LEAVES
@pytest.mark.parametrize("budget", ["entries", "bytes"])
def test_a_ring_and_side_calls_cost_neither_the_head_nor_the_main_session(kind, leaves, budget):
    unlimited = Traffic(kind, **leaves)
    play_ring(unlimited)
    half = unlimited.cache.status().bytes // 2
    limit = {"max_entries": 16} if budget == "entries" else {"max_bytes": half}
    limited = Traffic(kind, **limit, **leaves)
    play_ring(limited)
    whole, status = unlimited.cache.status(), limited.cache.status()
    lost = whole.bytes - status.bytes
    assert lost >= whole.bytes // 2 if budget == "bytes" else status.entries <= 16 < whole.entries


def play_ring(traffic: Traffic) -> None:
    """Three rounds of fourteen agents, each with twelve side calls between two turns of one."""
    agents = ring(traffic, 14)
    main = agents[0]
    agents[0].turn()
    for _ in range(3):
        for agent in agents[1:]:
            assert agent.turn() >= HEAD
        assert main.turn() >= HEAD
        for number in range(12):
            side_call(traffic, number)
        boundary = main.last_boundary
        assert main.turn() >= boundary


def test_a_long_abandoned_session_gives_way_to_what_is_used():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=8)
    traffic.request(text(2_000, 1), session="abandoned")
    for number in range(100):
        traffic.request([*text(100, 100 + number), 1], session=f"one-shot-{number}")
    assert traffic.match([*text(2_000, 1), 1]).length == 0


@pytest.mark.parametrize("holds_leaves", [False, True])
@pytest.mark.parametrize("thinking", [0, 100])
def test_one_busy_conversation_leaves_five_idle_ones_their_last_boundary(holds_leaves, thinking):
    whole = Traffic(CacheKind.CHECKPOINTED, holds_leaves=holds_leaves)
    play_busy_and_idle(whole, thinking)
    third = whole.cache.status().bytes // 3
    limited = Traffic(CacheKind.CHECKPOINTED, max_bytes=third, holds_leaves=holds_leaves)
    for conversation in play_busy_and_idle(limited, thinking):
        match = limited.match(conversation.prompt()[0])
        assert match.length >= conversation.last_boundary
        limited.cache.release(match)


def test_sessions_that_live_in_their_leaves_keep_those_where_there_is_room_for_one_each():
    room = bytes_of(checkpoints=8, tokens=12_000)
    traffic = Traffic(
        CacheKind.CHECKPOINTED, max_bytes=room, holds_leaves=True, keeps_entries=False
    )
    for conversation in play_busy_and_idle(traffic, thinking=0):
        end = len(conversation.head) + len(conversation.history)
        assert traffic.match(conversation.prompt()[0]).length == end


def play_busy_and_idle(traffic: Traffic, thinking: int) -> list[Conversation]:
    """Forty turns of one conversation, after two of each of five others, which are returned."""
    idle = [Conversation(traffic, f"idle-{n}", text(HEAD, 1), seed=n + 10) for n in range(5)]
    for conversation in idle:
        conversation.turn()
        conversation.turn()
    busy = Conversation(traffic, "busy", text(HEAD, 1), seed=1, thinking_length=thinking)
    for _ in range(40):
        boundary = busy.last_boundary
        assert busy.turn() >= boundary
    return idle
