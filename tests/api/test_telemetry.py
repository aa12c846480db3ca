"""Vendors' telemetry lines: cut where they open a block of the system text, and nowhere else."""

import pytest

from daemon.api.telemetry import without_telemetry
from daemon.chat import Conversation, Message, PlainText, TextPart

LINE = "x-anthropic-billing-header: cc_version=9.9.9.aaa; cc_entrypoint=cli; cch=11111;"
USER = Message("user", (TextPart("hi"),))


def system(*texts: str) -> Message:
    return Message("system", tuple(map(TextPart, texts)))


def shown(*messages: Message) -> list[tuple[str, str]]:
    cut = without_telemetry(Conversation(messages))
    assert isinstance(cut, Conversation)
    return [(message.role, message.text) for message in cut.messages]


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        LINE.removesuffix(";"),
        LINE + "\n\n",
        LINE + "\r\n",
        "x-anthropic-billing-header: cch=00000",
        "x-anthropic-billing-header:cc_version=2.1; cc_is_subagent=true; note=with blanks; cch=1; ",
    ],
)
def test_a_block_that_is_such_a_line_is_cut(line: str) -> None:
    expected = [("system", "You help."), ("user", "hi")]
    assert shown(system(line, "You help."), USER) == expected
    assert shown(system(line), system("You help."), USER) == expected


@pytest.mark.parametrize("gap", ["\n", "\n\n", "\r\n"])
def test_the_line_alone_is_cut_from_a_block_that_goes_on(gap: str) -> None:
    assert shown(system(f"{LINE}{gap}You help.\n{LINE}"), USER)[0][1] == f"You help.\n{LINE}"


def test_it_may_open_any_block_of_the_leading_system_text() -> None:
    assert shown(system("You help.", LINE, "Be short."), USER)[0][1] == "You help.\nBe short."


@pytest.mark.parametrize(
    "messages",
    [
        (system("You help."), Message("user", (TextPart(LINE),))),
        (system(f"You help.\n{LINE}"), USER),
        (system("You help."), USER, system(LINE)),
        (system("x-anthropic-billing-header: and other headers"), USER),
        (system("x-anthropic-billing-header: cch=1; You help."), USER),
        (system("x-anthropic-billing-header:"), USER),
        (system(f" {LINE}"), USER),
        (system(), USER),
        (Message("user", (TextPart(LINE),)),),
    ],
)
def test_what_somebody_wrote_stays_untouched(messages: tuple[Message, ...]) -> None:
    conversation = Conversation(messages)
    assert without_telemetry(conversation) is conversation


def test_plain_text_stays_untouched() -> None:
    text = PlainText(LINE)
    assert without_telemetry(text) is text


def test_a_longer_history_is_cut_alike() -> None:
    """Append-only: what a history becomes is a prefix of what the history and more become."""
    messages = (system(LINE, "You help."), USER, Message("assistant", (TextPart("ok"),)))
    assert shown(*messages) == shown(*messages, USER)[: len(messages)]
