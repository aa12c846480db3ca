"""The client libraries of OpenAI and Anthropic against a daemon: a loop with a tool, and a cut.

Everything goes over a socket and through the libraries' own streams and types. The same loop runs
with each API: two turns with a call each, the second by a new client, a stream left in the middle,
and one more turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.observed import ObservedDaemon, conversation, observed, overread, refused
from tests.clients.readme import python_for
from tests.clients.script import TITLE, Call, Step
from tests.clients.sdk_loops import LOOPS, Loop
from tests.clients.tiny_folder import write_folder

CONTENT = "".join(f"line {number} of the file: {number * 41}\n" for number in range(40))
THOUGHT = "The user wants a file, so I write one. " * 5
FINAL_WORDS = "The file is there, and this is all that there is to say about it. " * 4


def writing(path: str) -> Call:
    return Call("write_file", {"path": path, "content": CONTENT})


SCRIPTS = {
    "begin": [
        Step("I write it now.", [writing("first.txt")], think=THOUGHT),
        Step(FINAL_WORDS),
    ],
    "go-on": [Step("", [writing("second.txt")]), Step(FINAL_WORDS)],
    "ramble": [Step("I go on and on about it. " * 100, token_seconds=0.01)],
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedDaemon]:
    folder = tmp_path_factory.mktemp("sdks")
    with observed(write_folder(folder / "model"), folder / "daemon", SCRIPTS) as running:
        yield running


@pytest.mark.parametrize("api", LOOPS, ids=lambda each: each.__name__)
def test_a_client_library_works_in_a_loop_and_reads_nothing_twice(
    api: type[Loop], daemon: ObservedDaemon, request: pytest.FixtureRequest
) -> None:
    loop = api(daemon.base_url)
    request.addfinalizer(loop.close)
    assert loop.turn("[script:begin] Write the first file.") == FINAL_WORDS
    loop.renew()
    assert loop.turn("[script:go-on] Write the second file.") == FINAL_WORDS
    assert loop.files == {"first.txt": CONTENT, "second.txt": CONTENT}
    assert "on and on" in loop.cut("[script:ramble] Tell me about it.")
    assert loop.turn("[script:go-on] And write it again.") == FINAL_WORDS
    exchanges = [each for each in daemon.exchanges() if each.path == api.path]
    assert not refused(exchanges)
    requests = conversation(exchanges, "begin")
    assert [each.seen["phase"] for each in requests if each.seen] == [
        *["done"] * 4,
        "cancelled",
        *["done"] * 2,
    ]
    assert not overread(requests)


def test_the_libraries_lines_in_the_readme_work_as_written(
    daemon: ObservedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = python_for("The client libraries of OpenAI and Anthropic", daemon.port)
    for block in blocks:
        scope: dict[str, Any] = {}
        exec(block, scope)
        scope["client"].close()
    assert capsys.readouterr().out.splitlines() == [TITLE] * 2
