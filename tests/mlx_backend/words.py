"""Messages, and ids spelled out, for the tests of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlx_backend.messages import Prompt
from mlx_backend.prompts import MlxPromptEncoder
from mlx_backend.token_text import TokenText

Message = dict[str, Any]

TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Reads a file.", "parameters": {}},
}


def say(role: str, content: str | None, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def call(arguments: object = '{"path": "a.py"}', call_id: str = "call_0123456789") -> Message:
    function = {"name": "read_file", "arguments": arguments}
    return say(
        "assistant", None, tool_calls=[{"id": call_id, "type": "function", "function": function}]
    )


def result(content: str, call_id: str = "call_0123456789") -> Message:
    return say("tool", content, tool_call_id=call_id)


def written(encoder: MlxPromptEncoder, ids: Sequence[int] | np.ndarray) -> str:
    """Ids as text, control tokens spelled out."""
    tokenizer = encoder._tokenizer
    added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
    bytes_of = TokenText(tokenizer).bytes_of
    parts = [added[int(i)].encode() if int(i) in added else bytes_of(int(i)) for i in ids]
    return b"".join(parts).decode()


def control_counts(encoder: MlxPromptEncoder, prompt: Prompt) -> dict[str, int]:
    ids = prompt.tokens.tolist()
    added = encoder._tokenizer.get_added_tokens_decoder()
    return {token.content: ids.count(number) for number, token in added.items()}


def common(one: Prompt, other: Prompt) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one.tokens[:length] != other.tokens[:length])
    return int(differs[0]) if len(differs) else length
