"""What a tool loop reads in each dialect, when its client writes every call anew.

    python -m tests.benchmarks.dialects [KIND…]

Ten calls that a grammar asks of a tiny model, each echoed with its own id and its arguments
compact, keys reversed. Prints, from the second request on, the tokens that were read and those
that are neither the earlier prompt nor the answer to it. The model has no marks for thoughts and
one token that ends a turn, since these dialects have no bias that keeps random weights to the
point; `mlxd bench` measures the rest by chat completions.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx2

from daemon.bench.peers import mlxd
from daemon.bench.texts import Author
from daemon.bench.traffic import ToolCall

KINDS = ("tiny-full", "tiny-sliding", "tiny-hybrid")
TURNS = 11
AUTHOR = Author("dialects", 1.3)
TOOLS = AUTHOR.tools("agent", 3, 900)
SYSTEM = AUTHOR.prose("system", 300)
TASK = {"role": "user", "content": AUTHOR.prose("task", 200)}
COMMON = {"temperature": 0.0, "stream": False}

Body: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One answer: tokens of the prompt, of those read, of the answer; and its call."""

    prompt: int
    read: int
    generated: int
    call: ToolCall


@dataclass(frozen=True)
class Dialect:
    path: str
    body: Callable[[list[Body]], Body]
    turn: Callable[[Body], Turn]
    echo: Callable[[ToolCall, str], list[Body]]


def chat_body(history: list[Body]) -> Body:
    messages = [{"role": "system", "content": SYSTEM}, *history]
    choice = {"tool_choice": "required", "parallel_tool_calls": False}
    return {**COMMON, **choice, "max_tokens": 400, "tools": TOOLS, "messages": messages}


def chat_turn(answer: Body) -> Turn:
    usage = answer["usage"]
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    made = ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
    return Turn(usage["prompt_tokens"], read, usage["completion_tokens"], made)


def chat_echo(call: ToolCall, result: str) -> list[Body]:
    return [
        {"role": "assistant", "content": None, "tool_calls": [call.message_part()]},
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]


def messages_body(history: list[Body]) -> Body:
    functions = [tool["function"] for tool in TOOLS]
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in functions
    ]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    named = {"system": SYSTEM, "tools": tools, "tool_choice": choice}
    return {**COMMON, **named, "max_tokens": 400, "messages": history}


def messages_turn(answer: Body) -> Turn:
    usage = answer["usage"]
    (block,) = answer["content"]
    made = ToolCall(block["id"], block["name"], json.dumps(block["input"]))
    read = usage["input_tokens"]
    return Turn(read + usage["cache_read_input_tokens"], read, usage["output_tokens"], made)


def messages_echo(call: ToolCall, result: str) -> list[Body]:
    used = {"id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    told = {"type": "tool_result", "tool_use_id": call.id, "content": result}
    return [
        {"role": "assistant", "content": [{"type": "tool_use", **used}]},
        {"role": "user", "content": [told]},
    ]


def responses_body(history: list[Body]) -> Body:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice = {"tool_choice": "required", "parallel_tool_calls": False, "store": False}
    named = {"instructions": SYSTEM, "tools": tools, "input": history}
    return {**COMMON, **choice, **named, "max_output_tokens": 400}


def responses_turn(answer: Body) -> Turn:
    usage = answer["usage"]
    (item,) = answer["output"]
    made = ToolCall(item["call_id"], item["name"], item["arguments"])
    read = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    return Turn(usage["input_tokens"], read, usage["output_tokens"], made)


def responses_echo(call: ToolCall, result: str) -> list[Body]:
    called = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return [
        {"type": "function_call", **called},
        {"type": "function_call_output", "call_id": call.id, "output": result},
    ]


DIALECTS: Mapping[str, Dialect] = {
    "chat": Dialect("/v1/chat/completions", chat_body, chat_turn, chat_echo),
    "messages": Dialect("/v1/messages", messages_body, messages_turn, messages_echo),
    "responses": Dialect("/v1/responses", responses_body, responses_turn, responses_echo),
}


async def loop(http: httpx2.AsyncClient, model: str, name: str) -> AsyncIterator[Turn]:
    """The turns of one conversation."""
    dialect = DIALECTS[name]
    history: list[Body] = [TASK]
    for number in range(TURNS):
        body = {**dialect.body(history), "model": model}
        response = await http.post(dialect.path, json=body)
        if response.status_code != 200:
            raise SystemExit(response.text)
        turn = dialect.turn(response.json())
        yield turn
        result = AUTHOR.source(f"{name}/{number}.py", 200)
        history += dialect.echo(turn.call.rewritten(), result)


async def measure(kind: str, folder: Path) -> None:
    async with mlxd(str(folder)) as server:
        for name in DIALECTS:
            turns = [turn async for turn in loop(server.http, server.model, name)]
            read = sum(turn.read for turn in turns[1:])
            known = [turn.prompt + turn.generated for turn in turns[:-1]]
            least = sum(t.prompt - k for t, k in zip(turns[1:], known, strict=True))
            print(f"{kind:13} {name:10} read {read:6,} of {least:6,} new: {read / least:.3f}")


def write(kind: str, path: Path) -> Path:
    """A tiny model without marks for thoughts, whose turns end with one token."""
    from mlx_backend.blas import prefer_openblas

    prefer_openblas()
    from mlx_backend.tiny_models import write_folder
    from mlx_backend.tiny_tokenizer import STOP_TOKENS, token_id

    write_folder(kind, path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        file = path / name
        file.write_text(file.read_text().replace("think>", "mark>"))
    stops = json.dumps({"eos_token_id": [token_id(STOP_TOKENS[0])]})
    (path / "generation_config.json").write_text(stops)
    config = json.loads((path / "tokenizer_config.json").read_text())
    config |= {"eos_token": STOP_TOKENS[0], "pad_token": STOP_TOKENS[0]}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for chosen in sys.argv[1:] or KINDS:
            asyncio.run(measure(chosen, write(chosen, Path(place) / chosen)))
