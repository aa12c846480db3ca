"""A reason for every read: in the reply's header, in the record, in the log; texts for few."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from daemon.status import REASONS
from mlx_backend.messages import CacheKind
from tests.api.admin_desk import Desk, desk
from tests.engine.harness import every_caching_kind, run, until
from tests.fakes import Script, filler, fixed_reply

CHAT = "/v1/chat/completions"
SCRIPT_REPLY = "Certainly."
SYSTEM = "You help with code. " + filler(300, 1)


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def script() -> Script:
    return Script(reply=fixed_reply(list(SCRIPT_REPLY.encode())))


async def chat(
    at: Desk, *messages: Mapping[str, str], session: str | None = "main", **more: Any
) -> httpx2.Response:
    body = {"messages": list(messages), "session_id": session, **more}
    answer = await at.ask("POST", CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def record(at: Desk, answer: httpx2.Response, with_token: bool = False) -> dict[str, Any]:
    """What is remembered of the request that `answer` belongs to."""
    path = f"/mlxd/requests?id={answer.headers['x-request-id']}"
    found = (await (at.order if with_token else at.ask)("GET", path)).json()
    assert found["shows_texts"] is with_token
    (one,) = found["data"]
    assert one["reason"]["code"] in REASONS
    assert one["why_read"] == one["reason"]["sentence"]
    assert one["prompt"] == one["reused"] + one["read"]
    told = answer.headers["x-mlxd-reuse"]
    assert told.startswith(f"reused={one['reused']} of {one['prompt']}; reason=")
    assert f"reason={one['reason']['code']}" in told.split("; ")
    return one


async def code(at: Desk, *messages: Mapping[str, str], **more: Any) -> str:
    answer = await chat(at, *messages, **more)
    return str((await record(at, answer))["reason"]["code"])


@every_caching_kind
def test_a_conversation_is_seen_for_the_first_time_and_then_continues(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            turns = [say("system", SYSTEM), say("user", "What is this? " + filler(100, 2))]
            assert await code(at, *turns) == "first_seen"
            for number in range(3):
                turns += [say("assistant", SCRIPT_REPLY), say("user", f"And {number}?")]
                answer = await chat(at, *turns)
                found = await record(at, answer)
                assert found["reason"]["code"] == "continues"
                assert found["read"] < 40
            assert (await record(at, answer))["reason"]["message_role"] == "assistant"

    run(scenario())


@every_caching_kind
def test_another_question_behind_the_same_head_names_the_message(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            await chat(at, say("system", SYSTEM), say("user", "Why? " + filler(200, 2)))
            answer = await chat(at, say("system", SYSTEM), say("user", "Because " + filler(50, 3)))
            reason = (await record(at, answer))["reason"]
            assert reason["code"] == "diverged"
            assert (reason["message_index"], reason["message_role"]) == (1, "user")
            assert reason["left_at"] >= len(SYSTEM)
            assert answer.headers["x-mlxd-reuse"].endswith("; message=1 user")
            assert "in message 1 (user)" in reason["sentence"]

    run(scenario())


def test_a_fork_without_a_checkpoint_names_the_nearest() -> None:
    async def scenario() -> None:
        async with desk(CacheKind.CHECKPOINTED, script=script()) as at:
            long = "Look: " + filler(300, 2)
            await chat(at, say("system", SYSTEM), say("user", long + filler(300, 3)))
            answer = await chat(at, say("system", SYSTEM), say("user", long + filler(300, 4)))
            found = await record(at, answer)
            reason = found["reason"]
            assert (reason["code"], reason["message_index"]) == ("no_checkpoint", 1)
            assert reason["nearest"] == found["reused"] < reason["left_at"] - 300

    run(scenario())


@every_caching_kind
def test_what_was_cleared_is_evicted_by_that(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            turns = [say("system", SYSTEM), say("user", "hi")]
            await chat(at, *turns)
            assert (await at.order("POST", "/mlxd/cache/clear")).status_code == 200
            reason = (await record(at, await chat(at, *turns)))["reason"]
            assert (reason["code"], reason["evicted_by"]) == ("evicted", "reset")
            assert 0 <= reason["evicted_seconds"] < 20

    run(scenario())


@every_caching_kind
def test_what_was_too_large_was_not_kept(kind: CacheKind) -> None:
    async def scenario() -> None:
        limits = {"max_entries": None, "max_bytes": 1_500}
        async with desk(kind, script=script(), cache=limits) as at:
            turns = [say("system", SYSTEM), say("user", filler(500, 2))]
            assert await code(at, *turns) == "first_seen"
            assert await code(at, *turns) == "not_kept"

    run(scenario())


def test_a_model_without_reuse_says_so() -> None:
    async def scenario() -> None:
        async with desk(CacheKind.UNCACHEABLE, script=script()) as at:
            for _ in range(2):
                assert await code(at, say("user", "hi")) == "no_reuse"

    run(scenario())


@every_caching_kind
def test_a_restore_that_failed_is_named(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            turns = [say("system", SYSTEM), say("user", "hi there, " + filler(100, 3))]
            await chat(at, *turns)
            at.bench.script.faults.restores = 1
            answer = await chat(at, *turns)
            found = await record(at, answer)
            assert (found["reason"]["code"], found["reused"]) == ("restore_failed", 0)

    run(scenario())


# Which line broke it


def clock(time: str) -> list[dict[str, str]]:
    return [
        say("system", f"You help. {filler(200, 1)} It is {time} o'clock. {filler(200, 2)}"),
        say("user", "What time is it?"),
    ]


@every_caching_kind
def test_a_clock_in_the_system_prompt_is_shown_to_who_has_the_token(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            for other in ("08:15", "08:16"):  # others, with clocks of their own, in between
                await chat(at, *clock("12:07"))
                await chat(at, *clock(other), session="other")
            answer = await chat(at, *clock("14:59"))
            reason = (await record(at, answer, with_token=True))["reason"]
            assert (reason["message_index"], reason["message_role"]) == (0, "system")
            assert reason["stored_text"].startswith(" It is 12:07 o'clock")
            assert reason["prompt_text"].startswith(" It is 14:59 o'clock")
            assert len(reason["stored_text"]) == len(reason["prompt_text"]) == 8 + 16

    run(scenario())


@every_caching_kind
def test_a_clock_is_shown_though_another_session_sent_the_same_time_before(
    kind: CacheKind,
) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            await chat(at, *clock("12:01"))
            await chat(at, *clock("12:02"), session="other")
            own = [*clock("12:02")[:1], say("user", "How late is it?")]
            answer = await chat(at, *own)
            found = await record(at, answer, with_token=True)
            reason = found["reason"]
            assert (reason["code"], reason["message_index"]) == ("diverged", 1)
            assert found["reused"] > 400
            assert reason["stored_text"].startswith(" is 12:01 o'clock")
            assert reason["prompt_text"].startswith(" is 12:02 o'clock")
            assert "own history goes on differently" in reason["sentence"]
            assert "in message 0 (system)" in reason["sentence"]

    run(scenario())


@every_caching_kind
def test_nobody_else_sees_texts(kind: CacheKind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            await chat(at, *clock("12:07"))
            answer = await chat(at, *clock("14:59"))
            reason = (await record(at, answer))["reason"]
            assert reason["stored_text"] is reason["prompt_text"] is None
            wrong = {"authorization": "Bearer wrong"}
            for path in ("/mlxd/requests", "/mlxd/status", "/metrics", "/mlxd/cache"):
                for headers in ({}, wrong):
                    shown = await at.ask("GET", path, headers=headers)
                    assert shown.status_code == 200
                    assert "o'clock" not in shown.text
            assert "o'clock" not in str(answer.headers)

    run(scenario())
    assert "request req_" in caplog.text
    assert "o'clock" not in caplog.text


def test_a_session_that_goes_on_or_is_new_shows_no_texts() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            turns = clock("12:07")
            answers = [await chat(at, *turns)]
            turns += [say("assistant", SCRIPT_REPLY), say("user", "Thanks")]
            answers.append(await chat(at, *turns))
            answers.append(await chat(at, *clock("15:00"), session="new"))
            answers.append(await chat(at, *clock("16:00"), session=None))
            for answer in answers:
                reason = (await record(at, answer, with_token=True))["reason"]
                assert reason["stored_text"] is reason["prompt_text"] is None

    run(scenario())


# A vendor's line (case A1)


def billed(checksum: str) -> dict[str, Any]:
    line = f"x-anthropic-billing-header: cc_version=9.9.9.aaa; cc_entrypoint=cli; cch={checksum};"
    parts = [{"type": "text", "text": text} for text in (line, SYSTEM + filler(3000, 5))]
    return {"role": "system", "content": parts}


def sent_to_the_model(at: Desk) -> str:
    """All that any row ever held."""
    states = [row.state for row in at.bench.backend.rows]
    return "\n".join(bytes(t for t in state if t < 256).decode() for state in states)


@every_caching_kind
def test_a_telemetry_line_breaks_no_prefix(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind, script=script()) as at:
            first = await chat(at, billed("11111"), say("user", "hi"))
            more = [say("assistant", SCRIPT_REPLY), say("user", "go on")]
            second = await chat(at, billed("22222"), say("user", "hi"), *more)
            prompt = first.json()["usage"]["prompt_tokens"]
            cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= 0.95 * prompt
            assert "continues" in second.headers["x-mlxd-reuse"]
            assert "cch=" not in sent_to_the_model(at)
            await chat(at, say("user", billed("33333")["content"][0]["text"]))
            assert "cch=33333" in sent_to_the_model(at)

    run(scenario())


def test_a_telemetry_line_stays_where_it_is_wanted() -> None:
    async def scenario() -> None:
        async with desk(script=script(), door={"cuts_telemetry": False}) as at:
            await chat(at, billed("11111"), say("user", "hi"))
            answer = await chat(at, billed("22222"), say("user", "hi"))
            assert "cch=22222" in sent_to_the_model(at)
            reason = (await record(at, answer, with_token=True))["reason"]
            assert (reason["code"], reason["message_index"]) == ("diverged", 0)
            assert reason["stored_text"].startswith("li; cch=11111;")
            assert reason["prompt_text"].startswith("li; cch=22222;")

    run(scenario())


# Where it is told


def test_a_stream_says_it_in_its_headers() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            await chat(at, say("user", "hi"))
            turns = [say("user", "hi"), say("assistant", SCRIPT_REPLY), say("user", "more")]
            answer = await chat(at, *turns, stream=True)
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert (await record(at, answer))["reason"]["code"] == "continues"

    run(scenario())


def test_a_stream_that_waits_for_its_turn_has_its_headers_soon_and_without_it() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            sent: list[dict[str, Any]] = []
            begun = asyncio.Event()
            body = {"messages": [say("user", "hi")], "stream": True}

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)
                begun.set()

            async with at.bench.held():
                task = asyncio.create_task(at.post(CHAT, body, send))
                await asyncio.wait_for(begun.wait(), 10)
                assert not at.bench.calls("read")
            await task
            assert b"x-mlxd-reuse" not in dict(sent[0]["headers"])
            assert b"[DONE]" in b"".join(each.get("body", b"") for each in sent)

    run(scenario())


def test_a_refusal_says_nothing_of_reuse() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            answer = await at.ask("POST", CHAT, json={"messages": []})
            assert answer.status_code == 400
            assert "x-mlxd-reuse" not in answer.headers

    run(scenario())


def test_each_request_that_ends_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "daemon.records")

    async def scenario() -> None:
        async with desk(script=script()) as at:
            answer = await chat(at, say("user", "a secret"), session="my\nsession")
            usage = answer.json()["usage"]
            lines = [each.getMessage() for each in caplog.records if each.name == "daemon.records"]
            assert len(lines) == 1
            prompt, generated = usage["prompt_tokens"], usage["completion_tokens"]
            begin = f"request {answer.headers['x-request-id']} of session 'my\\nsession' is done: "
            assert lines[0].startswith(
                f"{begin}prompt {prompt} = reused 0 + read {prompt}, generated {generated}, "
                "first token after "
            )
            assert lines[0].endswith(" s: first_seen")
            assert "\n" not in lines[0]

    run(scenario())
    assert "secret" not in caplog.text


def test_the_last_two_hundred_requests_are_listed_the_newest_last() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            answers = [await chat(at, say("user", f"{number}")) for number in range(203)]
            ids = [answer.headers["x-request-id"] for answer in answers]
            listed = [each["id"] for each in (await at.json("/mlxd/requests"))["data"]]
            assert listed == ids[3:]
            missing = await at.ask("GET", f"/mlxd/requests?id={ids[0]}")
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "request_not_found"

    run(scenario())


def test_a_request_that_runs_can_be_asked_for_by_its_id() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            at.bench.steps.allow(0)
            task = asyncio.create_task(chat(at, say("user", "hi")))
            await at.bench.steps.standing()
            (running,) = at.bench.engine.status().running
            found = (await at.json(f"/mlxd/requests?id={running.id}"))["data"][0]
            assert found["phase"] in ("reading", "decoding")
            assert found["reason"]["code"] == "first_seen"
            assert (await at.json("/mlxd/requests"))["data"] == []
            at.bench.steps.free()
            await task

    run(scenario())


def test_requests_are_listed_while_no_model_is_there() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            await chat(at, *clock("12:07"))
            await chat(at, *clock("13:08"))
            at.bench.script.faults.unexpected_steps = 1
            at.bench.load_errors = [RuntimeError("the test says so")] * 50
            await at.ask("POST", CHAT, json={"messages": [say("user", "hi")]})
            await until(lambda: at.bench.engine.status().model.state == "failed")
            answer = await at.order("GET", "/mlxd/requests")
            assert len(answer.json()["data"]) == 3
            at.bench.load_errors = []
            await at.bench.ready()

    run(scenario())
