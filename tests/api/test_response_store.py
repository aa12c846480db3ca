"""Kept responses: a conversation goes on from one as from all its items, while there is room."""

import json
from typing import Any

import pytest

from daemon.api.openai_responses import OpenAIResponses
from daemon.api.response_store import ResponseStore
from daemon.chat import Completion, Conversation, Ended, EndReason, Envelope, TextBlock
from daemon.errors import NotFound
from daemon.generation import Usage

STOP = Ended(EndReason.STOP, Usage(1))
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


class Client:
    """Sends requests to one dialect, whose model says `reply`."""

    def __init__(self, **limits: int) -> None:
        self.store = ResponseStore(**limits)
        self.dialect = OpenAIResponses(self.store)
        self.sent = 0

    def rendered(self, **fields: object) -> list[dict[str, Any]]:
        prompt = self.dialect.parse(json.dumps(fields).encode()).prompt
        assert isinstance(prompt, Conversation)
        return [message.for_template() for message in prompt.messages]

    def ask(self, reply: str = "reply", **fields: object) -> dict[str, Any]:
        request = self.dialect.parse(json.dumps(fields).encode())
        self.sent += 1
        envelope = Envelope(f"resp_{self.sent}", "m", 1)
        body = self.dialect.reply(Completion(envelope, (TextBlock(reply),), STOP), request)
        whole: dict[str, Any] = json.loads(body)
        return whole


def test_going_on_from_a_response_is_sending_all_of_its_items() -> None:
    client = Client()
    first = [{"role": "user", "content": "hi"}, CALL, OUTPUT]
    one = client.ask("one", input=first)
    two = client.ask("two", input="more", previous_response_id=one["id"])
    more = {"role": "user", "content": "more"}
    items = [*first, *one["output"], more, *two["output"], OUTPUT]
    assert client.rendered(input=[OUTPUT], previous_response_id=two["id"]) == client.rendered(
        input=items
    )
    assert two["previous_response_id"] == one["id"]
    assert client.rendered(previous_response_id=one["id"]) == client.rendered(
        input=[*first, *one["output"]]
    )


def test_instructions_are_not_carried_over() -> None:
    client = Client()
    one = client.ask(input="hi", instructions="old")
    contents = [
        message["content"]
        for message in client.rendered(
            input="more", instructions="new", previous_response_id=one["id"]
        )
    ]
    assert contents == ["new", "hi", "reply", "more"]


def test_a_reference_to_an_item_is_the_item() -> None:
    client = Client()
    [item] = client.ask("said", input="hi")["output"]
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        assert client.rendered(input=[reference]) == client.rendered(input=[item])


def test_a_response_that_was_not_to_be_stored_is_not_found() -> None:
    client = Client()
    response = client.ask(input="hi", store=False)
    assert len(client.store) == 0
    with pytest.raises(NotFound) as caught:
        client.ask(input="more", previous_response_id=response["id"])
    assert (caught.value.status, caught.value.field) == (404, "previous_response_id")
    assert caught.value.code == "previous_response_not_found"


def test_the_first_that_were_kept_go_when_there_are_too_many() -> None:
    client = Client(max_responses=2)
    ids = [client.ask(input="hi")["id"] for _ in range(4)]
    assert len(client.store) == 2
    for gone in ids[:2]:
        with pytest.raises(NotFound):
            client.store.get(gone)
    for there in ids[2:]:
        assert json.loads(client.store.get(there).body)["id"] == there


def test_bytes_are_bounded_and_counted_to_the_last() -> None:
    client = Client(max_bytes=5_000)
    items = [item["id"] for _ in range(20) for item in client.ask("x" * 300, input="hi")["output"]]
    assert 2 <= len(client.store) < 20
    assert 2_500 < client.store.nbytes <= 5_000
    with pytest.raises(NotFound):
        client.store.item(items[0])
    assert client.store.item(items[-1])["id"] == items[-1]
    for response in range(21 - len(client.store), 21):
        client.store.forget(f"resp_{response}")
    assert (len(client.store), client.store.nbytes) == (0, 0)


def test_a_response_that_is_too_large_alone_costs_no_others() -> None:
    client = Client(max_bytes=5_000)
    small = client.ask(input="hi")
    client.ask("x" * 6_000, input="hi")
    assert len(client.store) == 1
    assert client.store.get(small["id"])
