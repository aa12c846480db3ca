"""A client and a model of one family that talk by way of an encoder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mlx_backend.messages import Prompt, SampledCall, SampledTurn
from mlx_backend.prompts import MlxPromptEncoder
from tests.mlx_backend.template_families import encoder_of
from tests.mlx_backend.words import TOOL, Message, result, say

HERMES = '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
LLAMA = '{{"name": "{name}", "parameters": {arguments}}}'
MISTRAL = '{{"name": "{name}", "arguments": {arguments}, "id": "aaaaaaaaa"}}'
HARMONY_CALL = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def coder_call(name: str, arguments: str) -> str:
    items = json.loads(arguments).items()
    told = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in items)
    return f"<tool_call>\n<function={name}>\n{told}</function>\n</tool_call>"


def glm_call(name: str, arguments: str) -> str:
    items = json.loads(arguments).items()
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in items)
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def spoken(family: str, turn: SampledTurn) -> str:
    """What a model of the family writes to say this, without the token that ends its turn."""
    if family == "harmony":
        thought = f"<|channel|>analysis<|message|>{turn.thought}<|end|><|start|>assistant"
        calls = [HARMONY_CALL.format(name=c.name, arguments=c.arguments) for c in turn.calls]
        final = [f"<|channel|>final<|message|>{turn.text}"]
        told = [*final, *calls] if turn.text.strip() or not calls else calls
        return (thought if turn.thought else "") + "<|end|><|start|>assistant".join(told)
    opened, closed = "<think>\n", "\n</think>\n\n"
    if family == "glm":
        opened, closed = "\n<think>", "</think>\n"
    if family == "qwen thinking":
        opened = ""
    thinks = turn.thought or family in ("glm", "qwen thinking")
    thought = f"{opened}{turn.thought}{closed}" if thinks else ""
    calls = [call_of(family, call) for call in turn.calls]
    if family == "mistral" and calls:
        return f"{thought}{turn.text}[TOOL_CALLS][{', '.join(calls)}]"
    return thought + turn.text + "\n".join(calls)


def call_of(family: str, call: SampledCall) -> str:
    if family in ("qwen coder", "glm"):
        return (coder_call if family == "qwen coder" else glm_call)(call.name, call.arguments)
    form = {"llama": LLAMA, "mistral": MISTRAL}.get(family, HERMES)
    return form.format(name=call.name, arguments=call.arguments)


@dataclass
class Chat:
    """A client and a model of one family; the client keeps what it likes of an answer."""

    family: str
    encoder: MlxPromptEncoder
    messages: list[Message] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    prompt: Prompt | None = None
    count: int = 0

    def ask(self, *messages: Message) -> Prompt:
        self.messages += messages
        tools = [] if self.family == "mistral" else [TOOL]
        self.prompt = self.encoder.chat(self.messages, tools)
        return self.prompt

    def answer(self, turn: SampledTurn, text: str | None = None) -> None:
        """The model samples `text`, which means `turn`."""
        assert self.prompt is not None
        text = spoken(self.family, turn) if text is None else text
        self.sampled = self.encoder._tokenizer.encode(text, add_special_tokens=False).ids
        self.encoder.remember(self.prompt, self.sampled, turn)

    def goes_on(self, before: Prompt, prompt: Prompt) -> bool:
        """Whether a prompt begins with an earlier one and the ids that were sampled for it."""
        ids = [*before.tokens.tolist(), *self.sampled]
        return prompt.tokens.tolist()[: len(ids)] == ids


def chat(family: str) -> Chat:
    return Chat(family, encoder_of(family))


def calling(*arguments: str, text: str = "", thought: str = "", start: int = 0) -> SampledTurn:
    calls = [
        SampledCall(f"call_{start + i}_0123456789", "read_file", told)
        for i, told in enumerate(arguments)
    ]
    return SampledTurn(text, thought, tuple(calls))


def echo(turn: SampledTurn, **changes: Any) -> Message:
    """The answer as a client sends it back that parses and writes JSON its own way."""
    calls = []
    for call in turn.calls:
        arguments = dict(reversed(json.loads(call.arguments).items()))
        told = json.dumps(arguments, separators=(",", ":"))
        function = {"name": call.name, "arguments": told}
        calls.append({"id": call.id, "type": "function", "function": function})
    optional = {"tool_calls": calls} if calls else {}
    return {**say("assistant", turn.text.strip() or None), **optional, **changes}


def results(turn: SampledTurn) -> list[Message]:
    return [result("the file", call.id) for call in turn.calls]
