"""Real agents, unmodified, at work with the daemon: they do a task, resume it, are interrupted.

Each runs in a process of its own, as the README says, against a daemon whose model follows a
script. `pytest -m clients` runs all of them, `-m clients_ci` those that CI has the time for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.agent import Agent, Session
from tests.clients.agents import AGENTS
from tests.clients.desk import Desk
from tests.clients.observed import ObservedDaemon, conversation, observed, overread, refused
from tests.clients.script import Scripts, Step
from tests.clients.tiny_folder import write_folder

FIRST_LINES = "".join(f"line {number} of the first file: {number * 37}\n" for number in range(60))
SECOND_LINES = "".join(f"the second file says {number}\n" for number in range(40))
FINAL_WORDS = "The file is there, and this is all that there is to say about it. " * 8
SESSION_NAMES = {Session.NAMELESS: 0, Session.FAMILY: 1, Session.OWN: 1, Session.PROCESS: 2}
"""How many names a conversation of two processes has."""


def marked(agent: Agent) -> object:
    marks = [pytest.mark.clients, *([pytest.mark.clients_ci] if agent.is_in_ci else [])]
    return pytest.param(agent, id=agent.name, marks=marks)


every_agent = pytest.mark.parametrize("agent", [marked(agent) for agent in AGENTS])
every_agent_with_helpers = pytest.mark.parametrize(
    "agent", [marked(agent) for agent in AGENTS if agent.delegate is not None]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model") / "tiny")


class Scene:
    """An agent, a daemon, and the files that the script has the agent write."""

    def __init__(self, agent: Agent, desk: Desk, daemon: ObservedDaemon) -> None:
        self.agent = agent
        self.desk = desk
        self.daemon = daemon

    def wrote(self, name: str) -> str:
        return self.agent.read(self.desk.project / name)


@pytest.fixture
def scene(agent: Agent, model: Path, tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "agent"
    with observed(model, tmp_path / "daemon", scripts(agent, folder / "project")) as daemon:
        yield Scene(agent, Desk(agent, folder, daemon.port), daemon)


def scripts(agent: Agent, project: Path) -> Scripts:
    first = agent.write(project / "first.txt", FIRST_LINES)
    second = agent.write(project / "second.txt", SECOND_LINES)
    found = {
        "begin": [
            Step("I write the file now.", [first], think="The user wants a file. " * 10),
            Step(FINAL_WORDS),
        ],
        "go-on": [Step("", [second]), Step(FINAL_WORDS)],
        "ramble": [Step("I go on and on about it. " * 200, token_seconds=0.03)],
    }
    if agent.delegate is not None:
        asked = agent.delegate("[script:begin] Write the first file, please.")
        found["delegate"] = [*asked, Step(FINAL_WORDS)]
    return found


@every_agent
def test_an_agent_does_a_task_and_goes_on_in_a_new_process(scene: Scene) -> None:
    scene.desk.run("[script:begin] Write the first file, please.")
    assert scene.wrote("first.txt") == FIRST_LINES
    scene.desk.run("[script:go-on] Now write the second file, please.", is_resumed=True)
    assert scene.wrote("second.txt") == SECOND_LINES
    exchanges = scene.daemon.exchanges()
    assert not refused(exchanges)
    requests = conversation(exchanges, "begin")
    assert [each.path for each in requests] == [scene.agent.path] * 4
    names = {each.session for each in requests} - {None}
    assert len(names) == SESSION_NAMES[scene.agent.session]
    asides = [each for each in exchanges if each.method == "POST" and not each.has_tools]
    assert any(each.path == scene.agent.path for each in asides) == scene.agent.asks_for_a_title
    if scene.agent.loses_prefix_on_resume:
        assert not overread(requests[:2])
        assert not overread(requests[2:])
    else:
        assert not overread(requests)


@every_agent
def test_an_agent_that_is_interrupted_goes_on(scene: Scene) -> None:
    scene.desk.run("[script:begin] Write the first file, please.")
    with scene.desk.running("[script:ramble] Tell me about it.", is_resumed=True):
        scene.daemon.wait_until_it_says(tokens=40)
    scene.daemon.wait_until_idle()
    scene.desk.run("[script:go-on] Now write the second file, please.", is_resumed=True)
    assert scene.wrote("second.txt") == SECOND_LINES
    exchanges = scene.daemon.exchanges()
    assert not refused(exchanges)
    requests = conversation(exchanges, "begin")
    assert [each.seen["phase"] for each in requests] == [*["done"] * 2, "cancelled", *["done"] * 2]
    assert not overread(requests[3:] if scene.agent.loses_prefix_on_resume else requests)


@every_agent_with_helpers
def test_an_agent_has_a_helper_do_its_task(scene: Scene) -> None:
    scene.desk.run("[script:delegate] Have a helper write the first file, please.")
    assert scene.wrote("first.txt") == FIRST_LINES
    exchanges = scene.daemon.exchanges()
    assert not refused(exchanges)
    asking, helping = conversation(exchanges, "delegate"), conversation(exchanges, "begin")
    assert not overread(asking)
    assert not overread(helping)
    [first, *_] = [each.seen for each in helping if each.seen]
    assert first["reused"] >= scene.agent.shared * first["prompt"]
    names = {each.session for each in asking}, {each.session for each in helping}
    is_own = scene.agent.session in (Session.OWN, Session.PROCESS)
    assert names[0].isdisjoint(names[1]) == is_own
