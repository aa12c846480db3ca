"""What the daemon costs beside the model: `python -m tests.benchmarks.throughput`.

* `cpu`: the daemon's CPU time per token, eight streams of a scripted model.
* `idle`: how often the threads of an idle daemon wake up.
* `decode` (with a model): tokens per second through HTTP beside a bare loop of mlx-lm's batch
  generator on the same prompts, in turns, for one stream and for four.

Prints numbers and the project's targets for them; asserts nothing, since speeds depend on the
machine. `cpu` and `idle` read /proc and so run on Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from daemon.bench.peers import mlxd
from tests.e2e.processes import running

CPU_TARGET_MICROSECONDS = 150
IDLE_TARGET_PER_SECOND = 1.0
DECODE_TARGET = 0.95
ROUNDS = 3
QUESTION = "Write a long story about a clockmaker. Leave nothing out, and number every sentence."


@dataclass
class Stream:
    """When each delta of one reply came, and how many tokens they were in the end."""

    deltas: list[float] = field(default_factory=list)
    tokens: int = 0

    def tokens_between(self, start: float, stop: float) -> float:
        inside = sum(start < moment <= stop for moment in self.deltas)
        return self.tokens * inside / len(self.deltas)


async def stream(http: httpx2.AsyncClient, text: str, fields: Mapping[str, Any]) -> Stream:
    """One reply to the user message `text`."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    seen = Stream()
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _take(seen, json.loads(line[6:]))
    return seen


def _take(seen: Stream, chunk: Mapping[str, Any]) -> None:
    deltas = [choice["delta"] for choice in chunk["choices"]]
    if any(delta.get("content") or delta.get("reasoning_content") for delta in deltas):
        seen.deltas.append(time.monotonic())
    if usage := chunk.get("usage"):
        seen.tokens = usage["completion_tokens"]


async def tokens_per_second(
    http: httpx2.AsyncClient, count: int, fields: Mapping[str, Any]
) -> float:
    """Of `count` streams together, while all of them run."""
    texts = [f"{QUESTION} Story number {n}." for n in range(count)]
    streams = await asyncio.gather(*(stream(http, text, fields) for text in texts))
    start = max(s.deltas[0] for s in streams)
    stop = min(s.deltas[-1] for s in streams)
    return sum(s.tokens_between(start, stop) for s in streams) / (stop - start)


# --- a daemon with a scripted model ------------------------------------------------------------


def cpu_seconds(process_id: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_cpu(streams: int = 8, tokens: int = 800) -> None:
    """Steps take 10 ms, as a small model's do; the scripted model's own work is included."""
    script = {"reply": "a" * (tokens + 1), "step_seconds": 0.01}
    with running(script=script) as daemon:
        asyncio.run(_replies(daemon.base_url, streams, 20))
        before = cpu_seconds(daemon.process.pid)
        seen = asyncio.run(_replies(daemon.base_url, streams, tokens))
        spent = cpu_seconds(daemon.process.pid) - before
    count = sum(s.tokens for s in seen)
    _say("CPU time per token", f"{spent / count * 1e6:.0f} µs", f"≤ {CPU_TARGET_MICROSECONDS} µs")


async def _replies(base_url: str, streams: int, tokens: int) -> list[Stream]:
    async with httpx2.AsyncClient(base_url=base_url, timeout=120, trust_env=False) as http:
        fields = {"max_tokens": tokens}
        return await asyncio.gather(*(stream(http, f"hi {n}", fields) for n in range(streams)))


def wake_ups(process_id: int) -> dict[str, int]:
    """Times that each thread of a process went to sleep of its own accord, by name and id."""
    counts = {}
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines())
        counts[f"{fields['Name']} {thread.name}"] = int(fields["voluntary_ctxt_switches"])
    return counts


def measure_idle(seconds: float = 10.0) -> None:
    with running() as daemon:
        daemon.chat("hi", max_tokens=3)
        daemon.http.close()
        time.sleep(2)
        before = wake_ups(daemon.process.pid)
        time.sleep(seconds)
        after = wake_ups(daemon.process.pid)
    rates = {name: (after[name] - before.get(name, 0)) / seconds for name in after}
    for name, rate in rates.items():
        _say(f"idle wake-ups, thread {name}", f"{rate:.1f} /s", "")
    total = f"{sum(rates.values()):.1f} /s"
    _say("idle wake-ups, all threads", total, f"< {IDLE_TARGET_PER_SECOND} /s")


# --- a real model ------------------------------------------------------------------------------


def measure_decode(folder: Path, tokens: int) -> None:
    from mlx_backend.blas import prefer_openblas

    prefer_openblas()
    from mlx_lm import load

    model, tokenizer = load(str(folder))
    fields = {
        "max_tokens": tokens,
        "temperature": 0.0,
        "logit_bias": {str(stop): -100.0 for stop in tokenizer.eos_token_ids},
    }
    asyncio.run(_compare(folder, model, tokenizer, fields))


async def _compare(folder: Path, model: Any, tokenizer: Any, fields: Mapping[str, Any]) -> None:
    async with mlxd(str(folder)) as server:
        for count in (1, 4):
            await tokens_per_second(server.http, count, {**fields, "max_tokens": 8})
            rounds = []
            for _ in range(ROUNDS):
                served = await tokens_per_second(server.http, count, fields)
                bare = bare_tokens_per_second(model, tokenizer, count, fields["max_tokens"])
                rounds.append((served, bare))
            ratio = median(served / bare for served, bare in rounds)
            detail = ", ".join(f"{served:.1f} beside {bare:.1f} tok/s" for served, bare in rounds)
            _say(f"decode, {count} streams: {detail}", f"{ratio:.3f}", f"≥ {DECODE_TARGET}")


def bare_tokens_per_second(model: Any, tokenizer: Any, count: int, tokens: int) -> float:
    """A loop of mlx-lm's generator over the same prompts, timed while all rows run."""
    from mlx_lm.generate import BatchGenerator

    messages = [
        [{"role": "user", "content": f"{QUESTION} Story number {n}."}] for n in range(count)
    ]
    prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True) for m in messages]
    with _closing(BatchGenerator(model)) as generator:
        generator.insert(prompts, max_tokens=[tokens] * count)
        while len(generator.next()[1]) < count:
            pass
        began, produced = time.monotonic(), 0
        while len(responses := generator.next()[1]) == count:
            produced += count
            if any(response.finish_reason for response in responses):
                break
        return produced / (time.monotonic() - began)


@contextmanager
def _closing(generator: Any) -> Iterator[Any]:
    try:
        yield generator
    finally:
        generator.close()


def _say(what: str, value: str, target: str) -> None:
    print(f"{what}: {value}" + (f"   (target {target})" if target else ""), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a model for `decode`")
    parser.add_argument("--tokens", type=int, default=96, help="length of the answers of `decode`")
    parser.add_argument("--only", choices=["cpu", "idle", "decode"])
    options = parser.parse_args()
    if options.only in (None, "cpu"):
        measure_cpu()
    if options.only in (None, "idle"):
        measure_idle()
    if options.model is not None and options.only in (None, "decode"):
        measure_decode(options.model, options.tokens)


if __name__ == "__main__":
    main()
