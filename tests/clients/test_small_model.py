"""A small real model that says what it likes, behind an agent and behind the client libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemon import paths
from tests.clients.agents import PI
from tests.clients.desk import Desk
from tests.clients.observed import ObservedDaemon, conversation, observed, overread, refused
from tests.clients.sdk_loops import LOOPS, Loop

MAX_TOKENS = 24

pytestmark = [pytest.mark.clients, pytest.mark.clients_ci]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedDaemon]:
    model = paths.demo_model_folder()
    if not model.is_dir():
        pytest.skip("the small model has not been fetched: `mlxd demo --fetch-only`")
    with observed(model, tmp_path_factory.mktemp("small") / "daemon", None) as running:
        yield running


def test_pi_talks_to_a_small_model_and_goes_on(daemon: ObservedDaemon, tmp_path: Path) -> None:
    brief = replace(PI[0], edit=lambda text: text.replace('"reasoning": true', '"maxTokens": 24'))
    desk = Desk(brief, tmp_path, daemon.port)
    assert desk.run("[script:none] Say hello in one short sentence.").strip()
    assert desk.run("Say it once more.", is_resumed=True).strip()
    exchanges = [each for each in daemon.exchanges() if "pi, a coding agent" in each.body]
    assert not refused(exchanges)
    requests = conversation(exchanges, "none")
    assert len(requests) >= 2
    assert not overread(requests)


@pytest.mark.parametrize("api", LOOPS, ids=lambda each: each.__name__)
def test_a_client_library_talks_to_a_small_model(api: type[Loop], daemon: ObservedDaemon) -> None:
    loop = api(daemon.base_url, MAX_TOKENS)
    try:
        assert loop.turn(f"[script:{api.__name__}] Say hello in one short sentence.")
        loop.renew()
        assert loop.turn("Say it once more.")
    finally:
        loop.close()
    exchanges = [each for each in daemon.exchanges() if each.path == api.path]
    requests = conversation(exchanges, api.__name__)
    assert [each.status for each in requests] == [200, 200]
    assert not overread(requests)
