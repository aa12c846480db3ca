"""What all dialects share, through the whole application: one test for each promise, all routes."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.types import Message

from mlx_backend.errors import PromptRejected
from mlx_backend.messages import Effort, Prompt, SampledCall, SampledTurn
from tests.api.admin_desk import Desk, desk
from tests.api.test_door import ask
from tests.api.wires import (
    CHAT,
    CHATS,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    SCHEMA,
    Said,
    Wire,
    every_chat,
    every_wire,
    whole_and_streamed,
)
from tests.engine.harness import run, until
from tests.fakes import (
    CALL_MARK,
    TURN_END,
    BytePrompts,
    Faults,
    Script,
    filler,
    fixed_reply,
)


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@asynccontextmanager
async def saying(said: str | Sequence[int] = "Certainly.", **options: Any) -> AsyncIterator[Desk]:
    """A model that says this to everybody. `options` are the script's."""
    ids = list(said.encode()) if isinstance(said, str) else said
    async with desk(script=Script(reply=fixed_reply(ids), **options)) as at:
        yield at


async def post(at: Desk, wire: Wire, content: Any = "hi", **fields: Any) -> httpx2.Response:
    return await at.ask("POST", wire.path, json=wire.body(content, **fields))


async def asked(at: Desk, wire: Wire, content: Any = "hi", **fields: Any) -> Said:
    stream = bool(fields.get("stream"))
    return wire.said(await post(at, wire, content, **fields), stream=stream)


async def ignore(message: Message) -> None:
    """A client that does not look."""


def error_message(answer: httpx2.Response) -> str:
    message = answer.json()["error"]["message"]
    assert isinstance(message, str)
    return message


# Text


@every_wire
@whole_and_streamed
def test_an_answer_has_its_text_its_end_and_its_numbers(wire: Wire, stream: bool) -> None:
    async def scenario() -> None:
        async with saying("Certainly, é.") as at:
            said = await asked(at, wire, stream=stream)
            assert (said.text, said.end) == ("Certainly, é.", "stop")
            assert (said.generated, said.cached) == (14, 0)  # the end token is not counted
            again = await asked(at, wire, stream=stream)
            other = await asked(at, wire, stream=not stream)
            assert again.cached == other.cached == said.prompt - 1
            assert again.prompt == said.prompt

    run(scenario())


@pytest.mark.parametrize(
    ("said", "stops", "text", "is_stopped"),
    [
        ("beta gamma x", ["beta gamma"], "", True),
        ("one beta gamma x", ["beta gamma"], "one ", True),
        ("beta delta", ["beta gamma"], "beta delta", False),
        ("so beta", ["beta gamma"], "so beta", False),
        ("xx abc", ["abc", "ab"], "xx ", True),
        ("xx ab", ["abc", "ab"], "xx ", True),
        ("é😀 end", ["😀"], "é", True),
        ("plain", [""], "plain", False),
    ],
)
@every_wire
@whole_and_streamed
def test_the_text_ends_exactly_before_a_stop_string(
    wire: Wire, stream: bool, said: str, stops: list[str], text: str, is_stopped: bool
) -> None:
    async def scenario() -> None:
        async with saying(said) as at:
            got = await asked(at, wire, stream=stream, **wire.stop(*stops))
            assert got.text == text
            ends = ("stop_string", "stop") if wire is MESSAGES else ("stop", "stop")
            assert got.end == ends[0 if is_stopped else 1]

    run(scenario())


@pytest.mark.parametrize("wire", [CHAT, MESSAGES], ids=lambda wire: wire.name)
@whole_and_streamed
def test_a_stop_string_inside_a_thought_or_an_argument_stops_nothing(
    wire: Wire, stream: bool
) -> None:
    async def scenario() -> None:
        said = "<think>a END</think>b " + call("ls", '{"path": "a END b"}')
        async with saying(said) as at:
            fields = {**wire.tools("ls"), **wire.stop("END")}
            got = await asked(at, wire, stream=stream, **fields)
            assert [made[1:] for made in got.calls] == [("ls", {"path": "a END b"})]
            assert (got.thought, got.text, got.end) == ("a END", "b", "calls")

    run(scenario())


# Thoughts and calls


@every_chat
@whole_and_streamed
def test_thoughts_text_and_calls_are_told_apart(wire: Wire, stream: bool) -> None:
    said = f"<think>call {call('ls')} perhaps</think>\n\nLet me see.\n"
    said += call("ls", '{"path": "a"}') + f"\nand\n{call('rm')}\n{call('ls')}"

    async def scenario() -> None:
        async with saying(said) as at:
            got = await asked(at, wire, stream=stream, **wire.tools("ls", "rm"))
            assert got.thought == f"call {call('ls')} perhaps"
            assert "Let me see." in got.text
            assert "<tool_call>" not in got.text
            assert [made[1:] for made in got.calls] == [
                ("ls", {"path": "a"}),
                ("rm", {}),
                ("ls", {}),
            ]
            again = await asked(at, wire, stream=stream, **wire.tools("ls", "rm"))
            ids = {made[0] for made in [*got.calls, *again.calls]}
            assert len(ids) == 6
            assert got.end == "calls"

    run(scenario())


@every_chat
@whole_and_streamed
def test_a_call_of_no_tool_is_text(wire: Wire, stream: bool) -> None:
    async def scenario() -> None:
        async with saying(f"So: {call('rm')}") as at:
            got = await asked(at, wire, stream=stream, **wire.tools("ls"))
            assert (got.calls, got.end) == ([], "stop")
            assert got.text == f"So: {call('rm')}"

    run(scenario())


@every_chat
@whole_and_streamed
def test_a_call_that_the_limit_cuts_is_not_shown_as_whole(wire: Wire, stream: bool) -> None:
    said = call("ls", '{"path": "somewhere/far/away"}')

    async def scenario() -> None:
        async with saying(said) as at:
            limit = wire.limit(len(said) - 30)
            got = await asked(at, wire, stream=stream, **wire.tools("ls"), **limit)
            assert (got.calls, got.end, got.text) == ([], "length", "")

    run(scenario())


# The choice of tools


@every_chat
@whole_and_streamed
def test_with_the_choice_none_nothing_is_called_and_the_prompt_stays(
    wire: Wire, stream: bool
) -> None:
    async def scenario() -> None:
        async with saying(f"So: {call('ls')}") as at:
            usual = await asked(at, wire, stream=stream, **wire.tools("ls"))
            none = await asked(at, wire, stream=stream, **wire.tools("ls"), **wire.choice("none"))
            assert (len(usual.calls), none.calls, none.end) == (1, [], "stop")
            assert none.prompt == usual.prompt
            assert none.cached == none.prompt - 1
            first, second = (row.sampling for row in at.bench.backend.rows)
            assert first is not None
            assert second is not None
            assert CALL_MARK not in dict(first.logit_bias)
            assert dict(second.logit_bias)[CALL_MARK] == -100

    run(scenario())


@every_chat
def test_no_tools_at_all_are_not_rendered_and_nothing_is_called(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying(call("ls")) as at:
            without = await asked(at, wire)
            empty = await asked(at, wire, tools=[])
            assert (empty.calls, empty.end, empty.prompt) == ([], "stop", without.prompt)

    run(scenario())


@pytest.mark.parametrize(
    ("choice", "names", "may_repeat"), [("required", ["ls", "rm"], True), ("rm", ["rm"], False)]
)
@every_chat
def test_a_call_that_is_required_is_enforced(
    wire: Wire, choice: str, names: list[str], may_repeat: bool
) -> None:
    async def scenario() -> None:
        async with saying(call("rm"), takes_constraints=True) as at:
            fields = {**wire.tools("ls", "rm"), **wire.choice(choice)}
            got = await asked(at, wire, **fields)
            assert [made[1] for made in got.calls] == ["rm"]
            [row] = at.bench.backend.rows
            assert row.sampling is not None
            assert row.sampling.grammar is not None
            constraint = row.sampling.grammar.constraint
            assert [tool.name for tool in constraint.tools] == names
            assert (constraint.schema, constraint.may_repeat) == (None, may_repeat)

    run(scenario())


@pytest.mark.parametrize(
    ("choice", "tools"), [("required", ("ls",)), ("ls", ("ls",)), ("nobody", ("ls",)), ("ls", ())]
)
@every_chat
def test_what_cannot_be_enforced_is_refused_and_never_ignored(
    wire: Wire, choice: str, tools: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        async with saying("no call") as at:
            answer = await post(at, wire, **wire.tools(*tools), **wire.choice(choice))
            assert answer.status_code == 400
            assert "`tool_choice" in error_message(answer)
            assert at.bench.engine.status().totals.requests == 0

    run(scenario())


@pytest.mark.parametrize("more", [f" and {call('rm')}", call("rm"), "\n" * 300])
@every_chat
@whole_and_streamed
def test_where_one_call_is_wanted_the_answer_ends_behind_the_first(
    wire: Wire, stream: bool, more: str
) -> None:
    async def scenario() -> None:
        async with saying(call("ls") + more) as at:
            fields = {**wire.tools("ls", "rm"), **wire.choice("auto", parallel=False)}
            got = await asked(at, wire, stream=stream, **fields)
            assert [made[1] for made in got.calls] == ["ls"]
            assert (got.end, got.text) == ("calls", "")
            assert got.generated < len(call("ls") + more)
            await at.bench.idle()
            [record] = at.bench.engine.status().recent
            assert record.phase == "done"

    run(scenario())


# JSON


@every_chat
@whole_and_streamed
def test_a_schema_is_compiled_for_the_answer_and_thoughts_stay_thoughts(
    wire: Wire, stream: bool
) -> None:
    async def scenario() -> None:
        async with saying('<think>hm</think>{"a": 1}', takes_constraints=True) as at:
            got = await asked(at, wire, stream=stream, **wire.schema())
            assert (json.loads(got.text), got.thought) == ({"a": 1}, "hm")
            both = {**wire.schema(), **wire.tools("ls")}
            await asked(at, wire, stream=stream, **both)
            await asked(at, wire, stream=stream, **both, **wire.choice("none"))
            samplings = [row.sampling for row in at.bench.backend.rows]
            grammars = [each.grammar for each in samplings if each is not None]
            constraints = [each.constraint for each in grammars if each is not None]
            assert [each.schema for each in constraints] == [SCHEMA] * 3
            assert [len(each.tools) for each in constraints] == [0, 1, 0]

    run(scenario())


@every_chat
def test_a_schema_that_cannot_be_kept_to_is_refused_by_its_field(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying("{}") as at:
            answer = await post(at, wire, **wire.schema())
            assert answer.status_code == 400
            assert f"`{wire.json_field}`" in error_message(answer)

    run(scenario())


# What is remembered


@every_chat
@whole_and_streamed
def test_an_answer_is_remembered_with_the_ids_it_was_sampled_in(wire: Wire, stream: bool) -> None:
    text = "<think>hm</think>So:\n" + call("ls", '{"b": 1}')

    async def scenario() -> None:
        async with saying(text) as at:
            got = await asked(at, wire, stream=stream, **wire.tools("ls"))
            [(prompt, sampled, turn)] = at.bench.models[-1].prompts.remembered
            assert len(prompt) == got.prompt
            assert bytes(sampled).decode() == text
            [(name, *_)] = got.calls
            calls = (SampledCall(name, "ls", '{"b": 1}'),)
            assert (turn.text.strip(), turn.thought, turn.calls) == ("So:", "hm", calls)
            assert not turn.is_cut

    run(scenario())


@pytest.mark.parametrize(
    ("said", "fields", "remembered"),
    [
        ("one two three", {"limit": 7}, [SampledTurn("one two")]),
        (call("ls", '{"a": 12345}'), {"limit": 50}, []),
        (f"{call('ls')}{call('ls')}", {"parallel": False}, []),
        ("<think>long and longer</think>", {"limit": 12}, []),
        ("", {}, []),
    ],
)
@every_chat
def test_only_ids_that_say_what_the_client_was_told_are_remembered(
    wire: Wire, said: str, fields: dict[str, Any], remembered: list[SampledTurn]
) -> None:
    sent: dict[str, Any] = wire.tools("ls")
    if "limit" in fields:
        sent |= wire.limit(fields["limit"])
    sent |= wire.choice("auto", parallel=fields.get("parallel", True))

    async def scenario() -> None:
        async with saying(said) as at:
            await asked(at, wire, **sent)
            found = [turn for _, _, turn in at.bench.models[-1].prompts.remembered]
            assert found == remembered

    run(scenario())


@pytest.mark.parametrize("wire", [CHAT, MESSAGES], ids=lambda wire: wire.name)
def test_what_a_stop_string_cut_is_not_remembered(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying("one STOP") as at:
            assert (await asked(at, wire, **wire.stop("STOP"))).text == "one "
            assert at.bench.models[-1].prompts.remembered == []

    run(scenario())


def test_the_only_call_that_was_wanted_is_remembered_where_the_model_ended_there() -> None:
    async def scenario() -> None:
        async with saying(call("ls")) as at:
            fields = {**CHAT.tools("ls"), **CHAT.choice("auto", parallel=False)}
            await asked(at, CHAT, **fields)
            [(_, sampled, _)] = at.bench.models[-1].prompts.remembered
            assert bytes(sampled).decode() == call("ls")

    run(scenario())


def test_a_plain_completion_is_not_remembered() -> None:
    async def scenario() -> None:
        async with saying() as at:
            await asked(at, COMPLETIONS)
            assert at.bench.models[-1].prompts.remembered == []

    run(scenario())


# Refusals and failures


@every_wire
@whole_and_streamed
def test_a_step_that_fails_never_looks_like_a_normal_end(wire: Wire, stream: bool) -> None:
    async def scenario() -> None:
        faults = Faults(steps=1, steps_before=5)
        async with saying("a long answer", faults=faults) as at:
            at.bench.steps.allow(5)
            waiting = asyncio.create_task(post(at, wire, stream=stream))
            await at.bench.steps.standing()
            await asyncio.sleep(0.05)  # its headers are out by then
            at.bench.steps.free()
            answer = await waiting
            if stream:
                assert answer.status_code == 200
                assert wire.terminal not in answer.text
                assert "it again" in answer.text.strip().splitlines()[-1]
            else:
                assert answer.status_code == 500
                assert "it again" in error_message(answer)

    run(scenario())


@every_wire
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("scripted", 200),
        ("/models/scripted", 200),
        ("owner/scripted", 200),
        ("claude-haiku-9-5", 200),
        ("gpt-9-mini", 200),
        ("default", 200),
        ("nonsense", 404),
        ("../../etc", 404),
    ],
)
def test_models_are_known_by_their_names_and_others_are_not_looked_for(
    wire: Wire, name: str, status: int
) -> None:
    async def scenario() -> None:
        async with saying() as at:
            answer = await post(at, wire, model=name)
            assert answer.status_code == status
            if status == 200:
                assert answer.json()["model"] == name
            else:
                assert "`scripted`" in error_message(answer)

    run(scenario())


@every_wire
def test_half_a_character_is_refused_where_it_stands(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying() as at:
            body = json.dumps(wire.body("HERE")).replace("HERE", r"a\ud83d").encode()
            headers = {"content-type": "application/json"}
            answer = await at.ask("POST", wire.path, content=body, headers=headers)
            assert answer.status_code == 400
            assert wire.prompt_field in error_message(answer)

    run(scenario())


@every_chat
def test_half_a_character_in_the_name_of_a_tool_is_refused(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying() as at:
            body = json.dumps(wire.body(**wire.tools("HERE"))).replace("HERE", r"\udc00x").encode()
            headers = {"content-type": "application/json"}
            answer = await at.ask("POST", wire.path, content=body, headers=headers)
            assert answer.status_code == 400
            assert "tools[0]" in error_message(answer)

    run(scenario())


@every_wire
def test_what_changed_nothing_is_listed_in_a_header(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying() as at:
            fields = {"wild_field": {"deep": [1]}, "service_level": 7, "é": 1, "a\nb": 2}
            for stream in (False, True):
                answer = await post(at, wire, stream=stream, **fields)
                assert answer.status_code == 200
                ignored = answer.headers["x-mlxd-ignored"].split(", ")
                assert {"wild_field", "service_level"} <= set(ignored)
                assert not {"é", "a", "b"} & set(ignored)
            assert "x-mlxd-ignored" not in (await post(at, wire)).headers

    run(scenario())


@every_wire
def test_who_has_to_come_back_is_told_when(wire: Wire) -> None:
    async def scenario() -> None:
        async with desk(max_queued=1, max_concurrent=1) as at:
            async with at.bench.held():
                waiting = asyncio.create_task(post(at, wire, **wire.limit(3)))
                await until(lambda: len(at.bench.engine.status().waiting) == 1)
                full = await post(at, wire)
                assert full.status_code == 429
                assert int(full.headers["retry-after"]) > 0
            assert (await waiting).status_code == 200

    run(scenario())


@every_wire
def test_whatever_is_refused_is_counted_by_its_status(wire: Wire) -> None:
    async def scenario() -> None:
        async with desk(max_queued=1, max_concurrent=1) as at:
            async with at.bench.held():
                waiting = asyncio.create_task(post(at, wire, **wire.limit(3)))
                await until(lambda: len(at.bench.engine.status().waiting) == 1)
                assert (await post(at, wire)).status_code == 429
            assert (await waiting).status_code == 200
            for _ in range(2):
                assert (await post(at, wire, temperature="warm")).status_code == 400
            totals = at.bench.engine.status().totals
            assert totals.refused == 3
            assert totals.refused_by_status == {"429": 1, "400": 2}
            assert totals.requests == 2, "the one that holds the engine, and the one that waited"

    run(scenario())


@every_wire
def test_an_answer_that_fails_was_not_refused(wire: Wire) -> None:
    async def scenario() -> None:
        async with desk() as at:
            at.bench.script.faults.steps = 1
            assert (await post(at, wire)).status_code == 500
            totals = at.bench.engine.status().totals
            assert (totals.failed, totals.refused) == (1, 0)

    run(scenario())


@every_wire
def test_while_the_model_loads_it_is_told_when_to_come_back(wire: Wire) -> None:
    loading = ask("POST", wire.path, json=wire.body())
    assert loading.status_code == 503
    assert int(loading.headers["retry-after"]) > 0


@every_wire
def test_an_overlong_prompt_is_refused_with_its_numbers_before_it_is_read(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying(context_size=100) as at:
            answer = await post(at, wire, filler(300, 1))
            assert answer.status_code == 400
            words = "prompt is too long: " if wire is MESSAGES else "maximum context length is 100"
            assert words in error_message(answer)
            if wire is not MESSAGES:
                error = answer.json()["error"]
                found = (error["code"], error["param"])
                assert found == ("context_length_exceeded", wire.prompt_field)
            assert at.bench.tokens_read == 0

    run(scenario())


# Content


@every_chat
def test_content_as_parts_is_the_same_and_an_unknown_part_is_refused(wire: Wire) -> None:
    kind = "input_text" if wire is RESPONSES else "text"

    async def scenario() -> None:
        async with saying() as at:
            text = await asked(at, wire, "one two")
            part = await asked(at, wire, [{"type": kind, "text": "one two"}])
            assert part.cached == text.prompt - 1 == part.prompt - 1
            lines = await asked(at, wire, "one\ntwo")
            parts = [{"type": kind, "text": each} for each in ("one", "two")]
            assert (await asked(at, wire, parts)).cached == lines.prompt - 1
            unknown = await post(at, wire, [{"type": "hologram", "hologram": {}}])
            assert unknown.status_code == 400
            assert f"{wire.prompt_field}[0].content[0]" in error_message(unknown)

    run(scenario())


@pytest.mark.parametrize(
    ("wire", "image"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:,"}}),
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": "http://x.example"}}),
        (RESPONSES, {"type": "input_image", "image_url": "data:,"}),
    ],
    ids=["chat", "messages", "responses"],
)
def test_where_an_image_was_the_model_is_told_so(wire: Wire, image: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with saying() as at:
            await asked(at, wire, [image])
            [row] = at.bench.backend.rows
            prompt = bytes(token for token in row.state if token < 256).decode()
            assert "[image: not shown, this model reads text only]" in prompt

    run(scenario())


EFFORTS = [
    (CHAT, {"reasoning_effort": "high"}, {"reasoning_effort": "none"}),
    (MESSAGES, {"output_config": {"effort": "high"}}, {"thinking": {"type": "disabled"}}),
    (RESPONSES, {"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "none"}}),
]


@pytest.mark.parametrize(("wire", "high", "none"), EFFORTS, ids=[wire.name for wire in CHATS])
def test_effort_reaches_the_prompt(wire: Wire, high: dict[str, Any], none: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with saying() as at:
            for fields in ({}, high, none):
                await asked(at, wire, **fields)
            silent, much, off = at.bench.models[-1].prompts.efforts
            assert (silent, much.level, off.thinking) == (Effort(), "high", False)

    run(scenario())


class RefusingPrompts(BytePrompts):
    """A template's options may not replace what the request itself says."""

    def chat(self, *args: Any, **options: Any) -> Prompt:
        raise PromptRejected("This is not an option.", "template_options.messages")


@every_chat
def test_an_option_that_no_template_takes_is_refused_by_the_clients_name_for_it(wire: Wire) -> None:
    async def scenario() -> None:
        async with saying() as at:
            at.bench.models[-1].prompts = RefusingPrompts()
            refused = await post(at, wire, chat_template_kwargs={"messages": []})
            assert refused.status_code == 400
            said = "`chat_template_kwargs.messages`: This is not an option."
            assert error_message(refused) == said

    run(scenario())


# Plain completions


def test_what_stands_between_two_texts_is_asked_for_with_the_tokenizers_own_marks() -> None:
    async def scenario() -> None:
        async with saying("return x", can_fill_in=True) as at:
            said = await asked(at, COMPLETIONS, "def f(x): ", suffix="\n# end")
            assert said.text == "return x"
            assert said.prompt == len("def f(x): ") + len("\n# end") + 3
        async with saying() as at:
            refused = await post(at, COMPLETIONS, "def f(x): ", suffix="\n# end")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "suffix")

    run(scenario())


@whole_and_streamed
def test_scores_are_told_for_every_token_that_is_counted(stream: bool) -> None:
    async def scenario() -> None:
        async with saying("abc") as at:
            for wire, fields in (
                (CHAT, {"logprobs": True, "top_logprobs": 2}),
                (COMPLETIONS, {"logprobs": 2}),
            ):
                answer = await post(at, wire, stream=stream, **fields)
                events = answer.text.splitlines() if stream else [answer.text]
                lines = [each.removeprefix("data: ") for each in events if '"choices"' in each]
                choices = [c for line in lines for c in json.loads(line)["choices"]]
                told = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
                if wire is CHAT:
                    content = [score for each in told for score in each["content"]]
                    tokens = [score["token"] for score in content]
                    assert all(len(score["top_logprobs"]) == 2 for score in content)
                else:
                    tokens = [token for each in told for token in each["tokens"]]
                    assert [at_ for each in told for at_ in each["text_offset"]] == [0, 1, 2]
                assert tokens == ["a", "b", "c"]

    run(scenario())


def test_the_end_of_a_turn_is_neither_text_nor_counted() -> None:
    async def scenario() -> None:
        async with saying([*b"ok", TURN_END, *b"more"]) as at:
            for wire in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
                said = await asked(at, wire)
                assert (said.text, said.generated) == ("ok", 2)

    run(scenario())


@every_chat
@whole_and_streamed
def test_what_a_client_saw_before_it_left_is_remembered_as_cut(wire: Wire, stream: bool) -> None:
    """Its next request has the text as far as it came."""

    async def scenario() -> None:
        async with saying("one two  <tool_call>") as at:
            at.bench.steps.allow(12)
            gone = asyncio.Event()
            body = wire.body(stream=stream, **wire.tools("ls"))
            asking = asyncio.create_task(at.post(wire.path, body, ignore, leaves=gone))
            await at.bench.steps.standing()
            await asyncio.sleep(0.05)  # what was drawn is taken by then
            gone.set()
            await asyncio.sleep(0.05)
            at.bench.steps.free()
            await asking
            [(_, sampled, turn)] = at.bench.models[-1].prompts.remembered
            assert turn.is_cut
            assert bytes(sampled).decode() == turn.text == "one two"  # the rest was held back

    run(scenario())
