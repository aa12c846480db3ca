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
    FillIn,
    Opening,
    PlainText,
    RawTokens,
    Score,
    Scored,
    ScoredText,
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
        ({"prompt": [1, 2], "suffix": "}"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2}, "n"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": "all"}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(
    fields: dict[str, object], at_fault: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    assert caught.value.field == at_fault


@pytest.mark.parametrize(
    "fields", [{"suffix": None}, {"suffix": ""}, {"echo": False}, {"logprobs": False}]
)
def test_what_asks_for_the_usual_is_accepted(fields: dict[str, object]) -> None:
    assert parsed(**fields) == parsed()


def test_with_a_suffix_it_asks_for_what_stands_between() -> None:
    assert parsed(prompt="def f(", suffix="return x").prompt == FillIn("def f(", "return x")


@pytest.mark.parametrize("alternatives", [0, 5])
def test_scores_are_told_in_the_older_shape_and_none_is_lost(alternatives: int) -> None:
    request = parsed(logprobs=alternatives)
    assert request.sampling.alternatives == alternatives
    likely = (ScoredText(b"\xc3\xa9", -0.5), ScoredText(b"x", -2.0))[:alternatives]
    first = Score(ScoredText(b"\xc3", -0.5), likely)
    rest = (Score(ScoredText(b"\xa9", -1.0)), Score(ScoredText(b"x", -3.0)))
    stream = COMPLETIONS.stream(ENVELOPE, request)
    events = [Scored((first,)), Scored(rest[:1]), TextDelta("é"), Scored(rest[1:]), ENDED]
    frames = b"".join(stream.encode(event) for event in events).decode().split("\n\n")
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    completion = Completion(ENVELOPE, HELLO, ENDED, (first, *rest))
    whole = json.loads(COMPLETIONS.reply(completion, request))["choices"][0]["logprobs"]
    assert whole["tokens"] == ["\ufffd", "\ufffd", "x"]
    assert whole["token_logprobs"] == [-0.5, -1.0, -3.0]
    assert whole["text_offset"] == [0, 0, 1]
    assert whole["top_logprobs"] == [{"é": -0.5, "x": -2.0} if alternatives else {}, {}, {}]
    assert {name: [item for each in streamed for item in each[name]] for name in whole} == whole


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
