"""Answers that come back: on a model of every cache kind, nothing of them is read a second time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_backend.tiny_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS, token_id
from tests.e2e.real_app import Pair, served
from tests.fakes import filler

KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid"]
PLAIN = {str(token_id(text)): -100 for text in (*CONTROL_TOKENS[:2], *MARKUP_TOKENS)}
"""Text alone comes out, and a turn ends as the template ends it."""
NEW_TOKENS = 64  # a question, the end of a turn, the beginning of the next


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    from mlx_backend.tiny_models import write_folder

    folder: Path = tmp_path_factory.mktemp("models") / request.param
    with served(write_folder(request.param, folder)) as started:
        yield started


def test_an_answer_whose_blanks_were_lost_is_not_read_again(pair: Pair) -> None:
    """A random model says what no tokenizer would make of its text."""

    async def scenario() -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": filler(200, 1)},
            {"role": "user", "content": "first"},
        ]
        last = await pair.chat(messages, max_tokens=40, logit_bias=PLAIN)
        for step in range(2):
            messages += [
                {"role": "assistant", "content": last.text.strip()},
                {"role": "user", "content": f"question {step}"},
            ]
            reply = await pair.chat(messages, max_tokens=40, logit_bias=PLAIN)
            said = int(last.usage["completion_tokens"])
            assert reply.prompt - reply.cached <= NEW_TOKENS
            assert reply.cached >= last.prompt + said - 1
            last = reply

    pair.run(scenario())
