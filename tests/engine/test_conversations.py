"""What conversations get: the cold run's answer each time, and nothing read twice."""

from __future__ import annotations

from daemon.generation import FinishReason, Generated, Progress, Started
from mlx_backend.messages import CacheKind, Marks
from tests.engine.harness import Bench, every_caching_kind, every_kind, run, running, until, words
from tests.fakes import TURN_END, Script, fixed_reply

GAP = 16  # a checkpoint nearer than this after another is not taken


def floor(kind: CacheKind, length: int) -> int:
    """How much of `length` stored tokens must be found again."""
    return length if kind is CacheKind.SLICEABLE else length - GAP


@every_kind
def test_the_events_of_one_request_come_in_order_and_add_up(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=100) as bench:
            prompt = words(250, 1)
            answer = await bench.run(prompt)
            started = answer.events[0]
            assert isinstance(started, Started)
            assert (started.reused, started.prompt) == (0, 250)
            assert started.reason == bench.engine.status().recent[-1].reason
            progress = [event.done for event in answer.events if isinstance(event, Progress)]
            assert progress == sorted(progress)
            assert progress[0] == 100
            assert progress[-1] == 249
            assert answer.reason is FinishReason.STOP
            assert answer.tokens == bench.cold(prompt)
            assert answer.usage.reused + answer.usage.read == answer.usage.prompt == 250
            assert answer.usage.generated == len(answer.tokens) == 40

    run(scenario())


def test_stop_ids_are_neither_emitted_nor_counted() -> None:
    async def scenario() -> None:
        async with running(Script(reply=fixed_reply([65, 66]))) as bench:
            answer = await bench.run([1, 2, 3])
            assert answer.tokens == [65, 66]
            assert answer.usage.generated == 2
            assert answer.reason is FinishReason.STOP

    run(scenario())


def test_a_request_ends_at_its_token_limit() -> None:
    async def scenario() -> None:
        async with running() as bench:
            answer = await bench.run(words(50, 1), max_tokens=5)
            assert answer.reason is FinishReason.LENGTH
            assert answer.tokens == bench.cold(words(50, 1), 5)
            assert answer.usage.generated == 5

    run(scenario())


def test_a_prompt_of_one_token_is_answered() -> None:
    async def scenario() -> None:
        async with running() as bench:
            for _ in range(2):
                answer = await bench.run([7])
                assert answer.tokens == bench.cold([7])
                assert answer.usage.reused == 0
                assert answer.usage.read == 1

    run(scenario())


def test_tokens_that_pile_up_are_handed_out_together() -> None:
    async def scenario() -> None:
        async with running() as bench:
            generation = bench.submit(words(10, 1))
            await until(lambda: generation.has_ended)
            events = [event async for event in generation]
            assert sum(isinstance(event, Generated) for event in events) == 1

    run(scenario())


@every_caching_kind
def test_the_same_prompt_again_then_a_shorter_one_then_an_edited_one(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=128) as bench:
            head, first, second = words(300, 1), words(200, 2), words(200, 3)
            prompt = head + first + second
            marks = Marks(head_end=300, last_user_end=690, stable_end=690)
            answers = [await bench.run(prompt, marks=marks) for _ in range(3)]
            for again in answers[1:]:
                assert again.tokens == answers[0].tokens == bench.cold(prompt)
                assert again.usage.reused >= floor(kind, 699)
            undone = await bench.run(head + first, marks=Marks(head_end=300))
            assert undone.tokens == bench.cold(head + first)
            assert undone.usage.reused >= (499 if kind is CacheKind.SLICEABLE else 300)
            edited = head + first[:50] + second
            answer = await bench.run(edited, marks=Marks(head_end=300))
            assert answer.tokens == bench.cold(edited)
            assert answer.usage.reused >= (350 if kind is CacheKind.SLICEABLE else 300)
            assert (await bench.run([1, 2, 3])).tokens == bench.cold([1, 2, 3])

    run(scenario())


async def _turn(bench: Bench, history: list[int], seed: int) -> tuple[list[int], int, int]:
    """A turn that thinks; the client sends the whole output back. New history, reused, state."""
    prompt = history + words(60, seed)
    answer = await bench.run(prompt)
    assert answer.tokens == bench.cold(prompt)
    state = bench.calls("release")[-1][1]
    return [*prompt, *answer.tokens, TURN_END], answer.usage.reused, state


@every_caching_kind
def test_ten_turns_keep_exactly_the_prompt_and_its_output_in_the_state(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            history: list[int] = []
            for turn in range(10):
                length = len(history)
                history, reused, state = await _turn(bench, history, 100 + turn)
                assert state == len(history)
                assert reused >= (floor(kind, length) if turn else 0)

    run(scenario())


@every_caching_kind
def test_an_answer_cut_by_its_limit_is_all_there_for_the_next_turn(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            prompt = words(200, 1)
            cut = await bench.run(prompt, max_tokens=20)
            longer = prompt + cut.tokens + words(30, 2)
            answer = await bench.run(longer)
            assert answer.usage.reused == 220
            assert answer.tokens == bench.cold(longer)

    run(scenario())


@every_caching_kind
def test_two_requests_of_one_session_at_once_both_go_on_later(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            history = words(100, 0)
            for turn in range(20):
                one, other = history + words(40, 2 * turn + 1), history + words(40, 2 * turn + 2)
                answers = await bench.together([one, other])
                for prompt, answer in zip((one, other), answers, strict=True):
                    assert answer.tokens == bench.cold(prompt)
                    ended = [*prompt, *answer.tokens, TURN_END]
                    branch = [*ended, *words(20, 500 + turn)]
                    continued = await bench.run(branch, max_tokens=4)
                    assert continued.usage.reused >= floor(kind, len(ended))
                    assert continued.tokens == bench.cold(branch, 4)
                history = [*one, *answers[0].tokens, TURN_END]

    run(scenario())


@every_caching_kind
def test_without_room_for_anything_all_is_read_and_answered_as_ever(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, cache={"max_bytes": 0}) as bench:
            prompt = words(300, 1)
            for _ in range(2):
                answer = await bench.run(prompt)
                assert answer.usage.reused == 0
                assert answer.tokens == bench.cold(prompt)
            assert bench.engine.status().cache.bytes == 0

    run(scenario())


def test_only_the_prompt_that_opens_a_session_is_captured_under_initial() -> None:
    async def scenario() -> None:
        kind = CacheKind.CHECKPOINTED
        async with running(kind=kind, prompt_end="initial") as bench:
            opening = words(100, 1)
            await bench.run(opening, session="s")
            following = opening + words(100, 2)
            await bench.run(following, session="s")
            captured = {call[1] for call in bench.calls("capture_checkpoint")}
            assert 99 in captured
            assert 199 not in captured
            await bench.run(words(80, 3))
            assert 79 in {call[1] for call in bench.calls("capture_checkpoint")}

    run(scenario())


@every_caching_kind
def test_what_a_request_used_can_go_once_it_has_ended(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, cache={"max_bytes": 30_000}) as bench:
            prompt = words(500, 1)
            await bench.run(prompt, max_tokens=1)
            assert (await bench.run(prompt, max_tokens=1)).usage.reused == 499
            for seed in range(2, 7):
                await bench.run(words(500, seed), max_tokens=1)
                await bench.run(words(500, seed), max_tokens=1)
            assert (await bench.run(prompt, max_tokens=1)).usage.reused == 0
            assert bench.engine.status().cache.bytes <= 30_000

    run(scenario())
