"""What encoding one more turn of a long conversation costs, beside encoding it all.

    python -m tests.benchmarks.encode [MODEL_FOLDER]

Prints the ratio of processor times; without a folder it takes the tests' small tokenizer. The
messages are like those that coding agents send: short calls and files as results, in one long
tool loop.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from tests.mlx_backend.template_families import FAMILIES, byte_level, with_tokens

TOKENS = 100_000
RESULT_CHARACTERS = 2_400


def conversation(source: str) -> list[dict[str, Any]]:
    """A system text, one question and calls with pieces of `source` as their results."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": source[:20_000]},
        {"role": "user", "content": "Find out what this does."},
    ]
    for step, start in enumerate(range(0, len(source), RESULT_CHARACTERS)):
        arguments = json.dumps({"path": f"src/file_{step}.py", "line": start})
        function = {"name": "read_file", "arguments": arguments}
        call = {"id": f"call_{step:09}", "type": "function", "function": function}
        text = source[start : start + RESULT_CHARACTERS]
        messages += [
            {"role": "assistant", "content": f"I read part {step}.", "tool_calls": [call]},
            {"role": "tool", "content": text, "tool_call_id": f"call_{step:09}"},
        ]
    return messages


def tools() -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": "What it does. " * 40,
                "parameters": parameters,
            },
        }
        for number in range(25)
    ]


def encoder(folder: Path | None, family: str) -> MlxPromptEncoder:
    from tokenizers import Tokenizer

    chosen = FAMILIES[family]
    tokenizer = byte_level(chosen.special)
    if folder is not None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer = with_tokens(tokenizer, chosen.special)
    template = JinjaTemplate(chosen.source, chosen.names)
    return MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))


def measure(folder: Path | None, family: str) -> None:
    lines = [path.read_text() for path in sorted(Path(__file__).parents[2].rglob("*.py"))]
    random.Random(0).shuffle(lines)
    source = "".join(lines)
    per_token = len(source[:100_000]) / len(encoder(folder, family).text(source[:100_000]))
    while len(source) < TOKENS * per_token:
        source += source
    messages = conversation(source[: int(TOKENS * per_token)])
    offered = tools()
    wholes, turns = [], []
    for _ in range(3):
        known, fresh = encoder(folder, family), encoder(folder, family)
        known.chat(messages[:-2], offered)
        started = time.process_time()
        prompt = fresh.chat(messages, offered)
        wholes.append(time.process_time() - started)
        sent_again = json.loads(json.dumps(messages))
        started = time.process_time()
        again = known.chat(sent_again, offered)
        turns.append(time.process_time() - started)
        assert prompt.tokens.tolist() == again.tokens.tolist()
    whole, turn = min(wholes), min(turns)
    print(
        f"{family:16} {len(prompt)} tokens in {len(messages)} messages: all {whole * 1e3:.1f} ms, "
        f"one more turn {turn * 1e3:.1f} ms = {turn / whole:.1%}"
    )


if __name__ == "__main__":
    for name in FAMILIES:
        measure(Path(sys.argv[1]) if len(sys.argv) > 1 else None, name)
