"""On real models and templates: how a request asks changes nothing about what it reuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.real_app import Pair, served
from tests.fakes import filler

CELLS = list(itertools.product([False, True], [None, {"enable_thinking": False}]))
TAIL = 20


@pytest.fixture(scope="module", params=["tiny-full", "tiny-hybrid"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    from mlx_backend.tiny_models import write_folder

    root: Path = tmp_path_factory.mktemp("models")
    with served(write_folder(request.param, root / request.param)) as started:
        yield started


def conversation(turns: int) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": filler(120, 1)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": filler(90, turn + 2)})
        messages.append({"role": "assistant", "content": f"Fine, {turn}."})
    return messages[:-1]


def test_all_four_ways_of_asking_reuse_as_much_and_read_what_the_others_stored(pair: Pair) -> None:
    async def scenario() -> None:
        found = []
        for stream, options in CELLS:
            fields = {"stream": stream, "chat_template_kwargs": options}
            replies = [await pair.chat(conversation(turns), **fields) for turns in (1, 2, 3)]
            found.append([reply.cached for reply in replies])
            assert replies[0].cached == 0
            assert replies[2].cached >= replies[1].prompt - TAIL
            for other_stream, other_options in CELLS:
                other = {"stream": other_stream, "chat_template_kwargs": other_options}
                again = await pair.warm.chat(conversation(3), **other)
                assert again.cached >= replies[2].prompt - 2 * TAIL
            await pair.warm.engine.ask(lambda seen: seen.cache.clear())
        assert all(numbers == found[0] for numbers in found)

    pair.run(scenario())
