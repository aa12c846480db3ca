"""Prompts in the manner of the Qwen templates, one token per byte: a double for policy tests.

System text and tools share the first turn, thinking is rendered only after the last user message,
and the generation tail opens a thinking block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from daemon.bench.floor import common_prefix
from mlx_backend.interface import ShouldStop, never
from mlx_backend.messages import Marks, Prompt, token_ids
from tests.fakes import TURN_END, TURN_START, BytePrompts

Messages = Sequence[Mapping[str, Any]]


class QwenLikePrompts(BytePrompts):
    """Implements `interface.PromptEncoder`."""

    def chat(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        should_stop: ShouldStop = never,
    ) -> Prompt:
        stable = self._render(messages, tools)
        probes = [[*_system(messages), {"role": "user", "content": c}] for c in ("a", "b")]
        first, second = (token_ids(self._render(probe, tools)) for probe in probes)
        head_end = common_prefix(first, second) - len("user\n") - 1
        prompt = [*stable, TURN_START, *b"assistant\n<think>\n"]
        marks = Marks(head_end=max(0, head_end), last_user_end=len(stable), stable_end=len(stable))
        return Prompt(token_ids(prompt), marks)

    def _render(self, messages: Messages, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        definitions = "".join(f"\n{json.dumps(tool)}" for tool in tools)
        system = "".join(str(message["content"]) for message in _system(messages))
        ids = self._turn("system", system + definitions) if system or definitions else []
        last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        for index, message in enumerate(messages):
            if message["role"] != "system":
                ids += self._message(message, keeps_thinking=index > last_user)
        return ids

    def _message(self, message: Mapping[str, Any], keeps_thinking: bool) -> list[int]:
        if message["role"] != "assistant":
            return self._turn(message["role"], message["content"])
        thinking = message.get("reasoning_content", "")
        opening = f"<think>\n{thinking}\n</think>\n\n" if keeps_thinking else ""
        calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
        text = message["content"] + "".join(f"\n<tool_call>{call}</tool_call>" for call in calls)
        return [TURN_START, *f"assistant\n{opening}{text}".encode(), TURN_END, *b"\n"]


def _system(messages: Messages) -> Messages:
    return messages[:1] if messages and messages[0]["role"] == "system" else []
