"""The plain completion format: text or token ids in, text out."""

import json

import pytest

from daemon.api.openai_completions import OpenAICompletions
from daemon.chat import (
    ChatRequest,
    Completion,
    Ended,
    EndReason,
    Envelope,
    Opening,
    PlainText,
    RawTokens,
    TextBlock,
    TextDelta,
)
from daemon.errors import BadRequest
from daemon.generation import Usage

COMPLETIONS = OpenAICompletions()
ENVELOPE = Envelope("cmpl-1", "some-model", 1_700_000_000)
OPENING = Opening(10, 4)
HELLO = (TextBlock("hello"),)
ENDED = Ended(EndReason.STOP_STRING, Usage(3, 1, 2, 1), "x")


def parsed(**fields: object) -> ChatRequest:
    return COMPLETIONS.parse(json.dumps({"prompt": "p", **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "source"),
    [
        ("text", PlainText("text")),
        ("", PlainText("")),
        (["text"], PlainText("text")),
        ([1, 2, 3], RawTokens((1, 2, 3))),
        ([[1, 2, 3]], RawTokens((1, 2, 3))),
    ],
)
def test_a_prompt_is_one_text_or_one_list_of_ids(prompt: object, source: object) -> None:
    assert parsed(prompt=prompt).prompt == source


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1, 2.5]]}, "prompt[0][1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, 2**40]}, "prompt[1]"),
        ({"suffix": "}"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2}, "n"),
        ({"logprobs": 0}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(
    fields: dict[str, object], at_fault: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    assert caught.value.field == at_fault


@pytest.mark.parametrize("fields", [{"suffix": None}, {"suffix": ""}, {"echo": False}, {"n": 1}])
def test_what_asks_for_the_usual_is_accepted(fields: dict[str, object]) -> None:
    assert parsed(**fields) == parsed()


def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    stream = COMPLETIONS.stream(ENVELOPE, parsed(stream_options={"include_usage": True}))
    frames = stream.start(OPENING) + stream.encode(TextDelta("hello")) + stream.encode(ENDED)
    *chunks, done, nothing = frames.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    text, finish, usage = (json.loads(chunk.removeprefix("data: ")) for chunk in chunks)
    reply = json.loads(COMPLETIONS.reply(Completion(ENVELOPE, HELLO, ENDED), parsed()))
    assert text["choices"][0]["text"] == reply["choices"][0]["text"] == "hello"
    assert finish["choices"][0]["finish_reason"] == reply["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"] == reply["usage"]
    assert text["object"] == reply["object"] == "text_completion"
