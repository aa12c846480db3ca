"""Whole requests on tiny real models of every cache kind: what is reused, and that it is right.

Each answer is compared with the one of a daemon that stores nothing (`Pair.chat`); what is
reused is what the reply's own usage says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.real_app import CHUNK_TOKENS, Pair, Reply, served
from tests.fakes import filler

KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid"]
GAP = 16
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from mlx_backend.tiny_models import write_folder

    root = tmp_path_factory.mktemp("models")
    return {kind: write_folder(kind, root / kind) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Pair]:
    with served(folders[request.param]) as started:
        yield started


def on(*kinds: str) -> pytest.MarkDecorator:
    """The kinds of cache that a test is about; without this it is about all of them."""
    return pytest.mark.parametrize("pair", kinds, indirect=True)


def say(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def opened(seed: int, length: int = 200) -> Messages:
    return [say("system", filler(length, seed)), say("user", f"first question of {seed}")]


def went_on(messages: Messages, answer: str, question: str) -> Messages:
    return [*messages, say("assistant", answer), say("user", question)]


def ids(length: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(20, 200, size=length)]


def count(text: str) -> int:
    from mlx_backend.tiny_tokenizer import make_tokenizer

    return len(make_tokenizer().encode(text).ids)


@on("tiny-full", "tiny-hybrid")
def test_an_empty_thought_that_only_the_live_turn_has_is_all_that_is_read_again(pair: Pair) -> None:
    tail = count("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    options = {"chat_template_kwargs": {"enable_thinking": False}}

    async def scenario() -> None:
        messages = opened(1)
        first = await pair.chat(messages, **options)
        second = await pair.chat(went_on(messages, "OK", "and now?"), **options)
        assert second.cached >= first.prompt - (tail + 8)

    pair.run(scenario())


@on("tiny-hybrid")
def test_thinking_that_is_dropped_from_history_costs_no_prompt(pair: Pair) -> None:
    async def scenario() -> None:
        messages = opened(2)
        replies = []
        for turn in range(4):
            replies.append(await pair.chat(messages, max_tokens=60))
            thought = f"<think>\n{replies[-1].text}\n</think>\n\n"
            messages = went_on(messages, f"{thought}Fine, {turn}.", f"question {turn}")
        for before, after in pairwise(replies):
            assert after.cached >= before.prompt - GAP

    pair.run(scenario())


@on("tiny-sliding")
def test_twelve_growing_turns_hit_each_time(pair: Pair) -> None:
    """Each is longer than a window; what was said comes back as other tokens than were drawn."""

    async def scenario() -> None:
        messages, replies = opened(3), list[Reply]()
        for turn in range(12):
            replies.append(await pair.chat(messages, stream=bool(turn % 2)))
            messages = went_on(messages, replies[-1].text, f"next, please: {turn}")
        for before, after in pairwise(replies):
            assert after.cached >= before.prompt - GAP

    pair.run(scenario())


@on("tiny-full", "tiny-hybrid")
def test_text_that_merges_with_what_follows_costs_eight_tokens(pair: Pair) -> None:
    async def scenario() -> None:
        text = filler(400, 4) + "print("
        first = await pair.complete(text)
        for longer in (text + ")", text + "))\n"):
            second = await pair.complete(longer)
            assert second.cached >= first.prompt - 8
            first = second

    pair.run(scenario())


@on("tiny-sliding")
def test_a_prompt_longer_than_any_window_is_appended_to(pair: Pair) -> None:
    async def scenario() -> None:
        first = await pair.complete(ids(500, 5))
        second = await pair.complete(ids(500, 5) + ids(40, 6))
        assert (first.prompt, second.prompt) == (500, 540)
        assert second.cached >= 480

    pair.run(scenario())


@on("tiny-full", "tiny-hybrid")
def test_sessions_with_one_head_share_it_and_nothing_else(pair: Pair) -> None:
    """Under the same system text and tools no task gets another task's answer."""
    system, tool = filler(200, 7), {"name": "look", "description": filler(60, 8)}
    tools = [{"type": "function", "function": {**tool, "parameters": {"type": "object"}}}]
    head = count(system) + count(tool["description"])

    async def scenario() -> None:
        replies = []
        for task in range(6):
            messages = [say("system", system), say("user", f"task {task}: {filler(30, 20 + task)}")]
            replies.append(await pair.chat(messages, tools=tools, max_tokens=16))
        assert all(reply.cached >= head - GAP for reply in replies[1:])
        assert len({reply.text for reply in replies}) > 3, "answers have to tell tasks apart"

    pair.run(scenario())


def test_the_same_again_a_shorter_and_an_edited_conversation(pair: Pair) -> None:
    long_result, short_result = filler(200, 9), "nothing found"

    def messages(found: str) -> Messages:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return [
            *opened(10),
            say("assistant", "", tool_calls=[call]),
            say("tool", found, tool_call_id="c1"),
            say("assistant", "I looked."),
            say("user", "So?"),
        ]

    async def scenario() -> None:
        body = messages(long_result)
        replies = [await pair.chat(body) for _ in range(3)]
        for again in replies[1:]:
            assert again.said == replies[0].said
            assert again.cached == again.prompt - 1 or not pair.can_cut
            assert again.cached >= again.prompt - 2 * GAP
        undone = await pair.chat(body[:-2])
        assert undone.cached >= count(body[0]["content"])
        edited = await pair.chat(messages(short_result))
        assert edited.cached >= count(body[0]["content"])
        for reply in (*replies, undone, edited):
            assert reply.reason in ("stop", "length")
            assert reply.usage["completion_tokens"] > 0

    pair.run(scenario())


def asked_with_a_common_beginning(pair: Pair) -> None:
    async def scenario() -> None:
        one, other = ids(300, 30), ids(20, 30) + ids(60, 31)
        first = await pair.complete(one)
        second = await pair.complete(other)
        again = await pair.complete(one)
        shorter = await pair.complete(one[:150])
        twice = await pair.complete(one[:150])
        assert first.cached == 0
        assert second.cached <= 20
        assert again.said == first.said
        assert again.cached >= 300 - 1 - 8
        assert twice.said == shorter.said
        assert twice.cached >= 150 - 1 - 8

    pair.run(scenario())


def test_of_a_conversation_that_only_begins_alike_nothing_else_is_taken(pair: Pair) -> None:
    asked_with_a_common_beginning(pair)


@pytest.mark.parametrize("kind", ["tiny-sliding"])
def test_quantised_kv_is_cut_and_continued_like_any_other(
    folders: dict[str, Path], kind: str
) -> None:
    with served(folders[kind], kv_bits=8) as quantised:
        asked_with_a_common_beginning(quantised)


@on("tiny-full", "tiny-hybrid")
def test_an_answer_that_was_cut_is_taken_up_right(pair: Pair) -> None:
    """By its limit, and by a stop string that ends inside a token's text."""

    async def scenario() -> None:
        messages = opened(11)
        whole = (await pair.chat(messages)).text
        stop = whole[3:5]
        for extra in ({"max_tokens": 5}, {"stop": [stop]}):
            cut = await pair.chat(messages, **extra)
            assert whole.startswith(cut.text)
            longer = await pair.chat(went_on(messages, cut.text, "go on"))
            assert longer.cached >= cut.prompt - GAP

    pair.run(scenario())


@on("tiny-full", "tiny-sliding")
def test_two_last_turns_at_once_are_both_right_and_both_continued(pair: Pair) -> None:
    async def scenario() -> None:
        history = opened(12)
        await pair.chat(history)
        branches = [went_on(history, "Yes.", f"turn {n}") for n in range(2)]
        replies = await asyncio.gather(*(pair.chat(branch) for branch in branches))
        for branch, reply in zip(branches, replies, strict=True):
            further = await pair.chat(went_on(branch, reply.text, "more"))
            assert further.cached >= reply.prompt - GAP

    pair.run(scenario())


@on("tiny-hybrid")
def test_sub_agents_that_start_at_once_read_their_head_once(pair: Pair) -> None:
    head = filler(600, 13)
    bodies = [[say("system", head), say("user", filler(50, 40 + n))] for n in range(4)]

    async def scenario() -> None:
        cold = [await pair.cold.chat(body) for body in bodies]
        warm = await asyncio.gather(*(pair.warm.chat(body) for body in bodies))
        assert [reply.said for reply in warm] == [reply.said for reply in cold]
        read = sum(reply.prompt - reply.cached for reply in warm)
        tails = sum(reply.prompt - count(head) for reply in warm)
        assert read <= count(head) + tails + 2 * CHUNK_TOKENS

    pair.run(scenario())


CROWD = [(7, 1), (300, 64), (41, 3), (129, 20), (2, 64)]
"""Lengths of prompts and of answers."""


@on("tiny-hybrid")
def test_rows_that_come_and_go_say_what_each_says_alone(pair: Pair) -> None:
    async def scenario() -> None:
        prompts = [ids(length, 50 + n) for n, (length, _) in enumerate(CROWD)]
        limits = [limit for _, limit in CROWD]
        alone = [
            (await pair.cold.complete(prompt, max_tokens=limit)).said
            for prompt, limit in zip(prompts, limits, strict=True)
        ]

        async def ask(number: int, turn: int) -> Reply:
            await asyncio.sleep(0.006 * ((number * 3 + turn) % 5))
            fields = {"max_tokens": limits[number], "stream": (number + turn) % 2 == 0}
            return await pair.warm.complete(prompts[number], **fields)

        replies = list[Reply]()
        for turn in range(3):
            crowd = await asyncio.gather(*(ask(number, turn) for number in range(len(CROWD))))
            assert [reply.said for reply in crowd] == alone
            replies += crowd
        assert len({reply.id for reply in replies}) == len(replies)

    pair.run(scenario())


@on("tiny-full")
def test_what_one_request_wants_of_sampling_is_not_anothers(pair: Pair) -> None:
    """A plain prompt is still being read when one with a penalty joins, and one with a schema."""
    from mlx_backend.tiny_tokenizer import token_id

    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    async def scenario() -> None:
        plain, penalised = ids(600, 60), ids(30, 61)
        wishes = {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "max_tokens": 40}
        alone = await pair.cold.complete(plain, max_tokens=40)
        other = await pair.cold.complete(penalised, **wishes)
        assert other.said != (await pair.cold.complete(penalised, max_tokens=40)).said
        fields = {"response_format": format_, "max_tokens": 100}
        fields["logit_bias"] = {str(token_id("<think>")): -100}  # a random model thinks for ever
        constrained, *warm = await asyncio.gather(
            pair.warm.chat(opened(14), **fields),
            pair.warm.complete(plain, max_tokens=40),
            pair.warm.complete(penalised, **wishes),
        )
        assert [reply.said for reply in warm] == [alone.said, other.said]
        assert isinstance(json.loads(constrained.text)["a"], bool)

    pair.run(scenario())


TIGHT_BYTES = {"tiny-full": 700_000, "tiny-sliding": 400_000}
"""Room for one of the prompts or so."""


@pytest.mark.parametrize("kind", ["tiny-full", "tiny-sliding"])
def test_forks_go_on_while_their_head_is_evicted(folders: dict[str, Path], kind: str) -> None:
    """Whatever is stored pushes out something that is in use."""
    with served(folders[kind], cache={"max_bytes": TIGHT_BYTES[kind]}) as tight:

        async def scenario() -> None:
            head = ids(300, 70)
            forks = [head + ids(20, 71 + n) for n in range(3)]
            stranger = ids(400, 80)
            prompts = [*forks[:2], stranger]
            alone = [(await tight.cold.complete(each, max_tokens=50)).said for each in prompts]
            await tight.warm.complete(head)
            warm = await asyncio.gather(
                *(tight.warm.complete(each, max_tokens=50, stream=True) for each in prompts)
            )
            assert [reply.said for reply in warm] == alone
            assert max(reply.cached for reply in warm) > 0
            await tight.complete(forks[2])
            kept = tight.warm.engine.status().cache
            assert kept.bytes <= TIGHT_BYTES[kind]
            assert kept.evicted_entries + kept.thinned_checkpoints > 0

        tight.run(scenario())
