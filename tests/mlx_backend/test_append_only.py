"""Whatever is said next: a prompt begins with the one before, in ids, if its template lets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.chat import Message as SentMessage
from daemon.chat import TextPart
from mlx_backend.messages import Prompt, SampledCall, SampledTurn
from tests.mlx_backend.chats import Chat, chat, echo
from tests.mlx_backend.template_families import FAMILIES, encoder_of
from tests.mlx_backend.words import TOOL, Message, common, result, say, written

SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ENCODERS = {family: encoder_of(family) for family in FAMILIES}
DROP_THINKING = ("qwen", "qwen thinking", "harmony", "glm")

words = st.text("ab<>|\n xé🙂", min_size=1, max_size=8).map(lambda text: f"w{text}w")
reminders = st.lists(st.builds(say, st.sampled_from(["system", "developer"]), words), max_size=1)
values = st.one_of(words, st.integers(-9, 9), st.booleans(), st.none(), st.lists(words, max_size=2))
arguments = st.dictionaries(st.sampled_from(["path", "line", "all"]), values, max_size=3)


@dataclass(frozen=True)
class Turn:
    """What a model says, how its client sends it back, and what comes next."""

    text: str
    thought: str
    calls: tuple[dict[str, Any], ...]
    blanks: str
    separators: tuple[str, str]
    echoed: str | None  # the field that the reasoning comes back in
    following: tuple[Message, ...]

    def said(self, number: int) -> SampledTurn:
        calls = tuple(
            SampledCall(
                f"call_{number}_{index}_0123456",
                "read_file",
                json.dumps(call, separators=self.separators),
            )
            for index, call in enumerate(self.calls)
        )
        return SampledTurn(self.blanks + self.text + self.blanks, self.thought, calls)

    def sent_back(self, said: SampledTurn) -> list[Message]:
        message = echo(said)
        if self.thought and self.echoed:
            message[self.echoed] = self.thought
        before, after = self.following[:1], self.following[1:]
        results = [result("w the file w", call.id) for call in said.calls]
        if not said.calls:
            return [message, *self.following, say("user", "wmorew")]
        return [message, *results[:1], *before, *results[1:], *after]


turns = st.builds(
    Turn,
    text=st.just("") | words,
    thought=st.just("") | words,
    calls=st.lists(arguments, max_size=2).map(tuple),
    blanks=st.sampled_from(["", "\n\n", " "]),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]),
    echoed=st.sampled_from([None, "reasoning_content", "thinking"]),
    following=reminders.map(tuple),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], list[int]]:
    """A history, and where a request can have ended: before each of the assistant's messages."""
    messages = [*draw(reminders), *draw(reminders)]
    for number in range(draw(st.integers(1, 4))):
        if not number:
            messages += [say("user", draw(words)), *draw(reminders)]
        turn = draw(turns)
        messages += turn.sent_back(replace(turn, text=turn.text or "w").said(number))
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return messages, ends


def in_parts(message: Message) -> Message:
    """The same message, sent as an array of parts instead of a text."""
    texts = (message["content"] or "").split("\n")
    sent = SentMessage(message["role"], tuple(TextPart(text) for text in texts))
    return {**message, "content": sent.text}


def thinks(messages: Sequence[Message]) -> bool:
    return any("reasoning_content" in message or "thinking" in message for message in messages)


@pytest.mark.parametrize("family", FAMILIES)
@given(history=histories(), with_tools=st.booleans())
@SETTINGS
def test_a_prompt_without_its_tail_begins_every_later_one(
    family: str, history: tuple[list[Message], list[int]], with_tools: bool
) -> None:
    encoder, (messages, ends) = ENCODERS[family], history
    tools = [TOOL] if with_tools and family != "mistral" else []  # it moves tools to the last user
    whole = encoder.chat(messages, tools)
    tail = len(written(encoder, encoder.chat([say("user", "a")]).tokens).rpartition("a")[2])
    for end in ends:
        prompt = encoder.chat(messages[:end], tools)
        shared = common(prompt, whole)
        assert shared >= prompt.marks.last_user_end
        if family not in DROP_THINKING or not thinks(messages[:end]):
            assert shared >= len(prompt) - tail
    parts = encoder_of(family).chat([in_parts(message) for message in messages], tools)
    assert parts.tokens.tolist() == whole.tokens.tolist()


def goes_on(family: str, said: SampledTurn, *, loop_thinks: bool) -> bool:
    """Whether the family's template writes this answer behind the tail that it was sampled behind,
    and all that the answer's prompt consists of."""
    if family == "empty thinking":
        return False
    if family == "qwen thinking" and not said.thought:
        return False
    if family == "llama" and len(said.calls) > 1:  # it writes a turn for each
        return False
    if family in DROP_THINKING:
        if family == "harmony" and (len(said.calls) > 1 or (said.calls and said.text.strip())):
            return False  # a call ends its turn
        return bool(said.calls) or not loop_thinks
    return family == "chatml" or not said.thought


@pytest.mark.parametrize("family", FAMILIES)
@given(opening=reminders, talk=st.lists(turns, min_size=1, max_size=4))
@SETTINGS
def test_with_its_answers_remembered_a_prompt_begins_with_the_last_and_what_was_sampled(
    family: str, opening: list[Message], talk: list[Turn]
) -> None:
    client = chat(family)
    prompt = client.ask(*opening, say("user", "wgow"))
    loop_thinks = False
    for number, turn in enumerate(talk):
        said = turn.said(number)
        client.answer(said)
        loop_thinks = loop_thinks or bool(said.thought)
        before, prompt = prompt, client.ask(*turn.sent_back(said))
        assert common(prompt, before) >= before.marks.last_user_end
        if goes_on(family, said, loop_thinks=loop_thinks):
            assert client.goes_on(before, prompt)
        loop_thinks = loop_thinks and bool(said.calls)
        check_whole(client, prompt)


def check_whole(client: Chat, prompt: Prompt) -> None:
    """Nothing that was said is lost, and messages are where they are said to be."""
    text = written(client.encoder, prompt.tokens)
    told = [m for m in client.messages if m["role"] != "assistant"]
    assert all(message["content"].strip() in text or "\\" in text for message in told)
    offsets = [start.offset for start in prompt.messages]
    assert offsets == sorted(offsets)
    assert max(offsets) <= len(prompt)
