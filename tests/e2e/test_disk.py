"""What was read stays read: daemons that are stopped, killed, and find what others left on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Daemon, running
from tests.fakes import filler
from tests.state_files import about, cut_short, flip_a_bit, nbytes, state_files

KINDS = ["sliceable", "checkpointed"]
HEAD = filler(1_200, 1)
TEXTS = [filler(1_500, seed) for seed in range(3)]
IDLE = {"disk_cache_idle_seconds": 0.05}
SCRIPT = {"checkpoint_bytes": 4_000}
TAIL = 16
"""Tokens at the end of a prompt of which no state is kept where it cannot be cut."""


@contextmanager
def daemon_on(folder: Path, kind: str = "sliceable", **settings: Any) -> Iterator[Daemon]:
    limits = {"disk_cache_free_bytes": 0, **settings}
    with running(kind=kind, script=SCRIPT, disk=str(folder), settings=limits) as daemon:
        yield daemon


def turn(daemon: Daemon, *said: str, **fields: Any) -> tuple[str, int, int]:
    """What comes after the user's words and the answers between them, the tokens that were reused
    for it, and those of the prompt."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    answer = daemon.chat(messages=messages, max_tokens=8, **fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    usage = body["usage"]
    text = body["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def disk(daemon: Daemon) -> dict[str, Any]:
    return daemon.engine()["disk"]


@dataclass(frozen=True)
class Left:
    """What a daemon left in a folder that had read `TEXTS` and was stopped."""

    folder: Path
    answers: list[str]
    prompts: list[int]

    def copied(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to))


Leaves = Callable[[str], Left]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Leaves:
    """By kind of model; each made once."""

    @cache
    def made(kind: str) -> Left:
        folder = tmp_path_factory.mktemp("left") / "disk"
        with daemon_on(folder, kind) as daemon:
            turns = [turn(daemon, text) for text in TEXTS]
            assert daemon.stop() == 0
            assert "Traceback" not in daemon.process.stderr.read()
        return Left(folder, [text for text, _, _ in turns], [prompt for _, _, prompt in turns])

    return made


@pytest.fixture(scope="module")
def cold() -> Iterator[Daemon]:
    """It keeps nothing on disk. What is answered does not hang on a model's kind."""
    with running(script=SCRIPT) as daemon:
        yield daemon


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_at_a_stop_is_found_after_the_start(
    tmp_path: Path, kind: str, left: Leaves, cold: Daemon
) -> None:
    """Some conversations in one process, the second of which goes on: J10."""
    before = left(kind)
    talk = (TEXTS[1], before.answers[1], "go on")
    with daemon_on(before.copied(tmp_path / "disk"), kind) as daemon:
        after, reused, _ = turn(daemon, *talk)
        assert reused >= before.prompts[1] - TAIL
        last = daemon.http.get("/mlxd/requests").json()["data"][-1]
        assert last["from_disk"] == last["reused"] == reused
        assert last["disk_bytes"] > 0
        assert disk(daemon)["hits"] == 1
    assert turn(cold, *talk)[0] == after


def test_files_that_are_torn_or_wrong_are_read_again_and_gone(tmp_path: Path, left: Leaves) -> None:
    """Cut short, changed by a bit, begun and never ended: J8."""
    kind, texts = "checkpointed", TEXTS
    said = left(kind).answers
    folder = left(kind).copied(tmp_path / "disk")
    torn, changed, good = ends_of_conversations(folder)
    cut_short(torn)
    flip_a_bit(changed, changed.stat().st_size // 2)
    begun = good.with_suffix(".safetensors.0123456789abcdef.tmp")
    begun.write_bytes(b"begun")
    with daemon_on(folder, kind) as daemon:
        again = [turn(daemon, text) for text in texts]
        assert [answer for answer, _, _ in again] == said
        is_whole = [reused >= prompt - TAIL for _, reused, prompt in again]
        assert sorted(is_whole) == [False, False, True], "what is wrong costs the others nothing"
        assert disk(daemon)["bad_files"] == 2, "the torn one and the changed one"
        assert not begun.exists()
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()
    with daemon_on(folder, kind) as daemon:
        again = [turn(daemon, text) for text in texts]
        assert [answer for answer, _, _ in again] == said
        assert all(reused >= prompt - TAIL for _, reused, prompt in again), "written anew"
        assert disk(daemon)["bad_files"] == 0


def ends_of_conversations(folder: Path) -> list[Path]:
    """The last block of each; the first one is shared, since all prompts begin alike."""
    return [
        file
        for file in state_files(folder)
        if ".block." in file.name and int(about(file)["start"]) > 1_000
    ]


def test_a_folder_that_cannot_be_used_costs_no_answer(tmp_path: Path) -> None:
    nowhere = tmp_path / "a file"
    nowhere.write_text("not a folder", encoding="ascii")
    with daemon_on(nowhere, **IDLE) as daemon:
        assert turn(daemon, HEAD)[1] == 0
        assert turn(daemon, HEAD)[1] > 0, "in memory it is as ever"
        found = disk(daemon)
        assert str(nowhere) in found["last_failure"] or "folder" in found["last_failure"]
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()
    assert nowhere.read_text(encoding="ascii") == "not a folder"


def test_the_limit_holds_from_the_start_and_what_nobody_can_use_goes_first(tmp_path: Path) -> None:
    """More than twice the limit is there, of another model: J7."""
    with daemon_on(tmp_path, "checkpointed") as other:
        for seed in range(8):
            turn(other, filler(2_000, 50 + seed))
        assert other.stop() == 0
    useless = set(state_files(tmp_path))
    limit = nbytes(tmp_path) * 2 // 5
    texts = [filler(2_000, seed) for seed in range(8)]
    with daemon_on(tmp_path, disk_cache_bytes=limit, **IDLE) as daemon:
        started = daemon.wait_until(lambda engine: nbytes(tmp_path) <= limit)["disk"]
        assert 0 < started["bytes"] <= limit
        assert started["unusable_bytes"] > started["usable_bytes"] == 0
        for text in texts[:3]:
            turn(daemon, text)
        found = daemon.saved()
        assert found["evicted_files"] > started["evicted_files"]
        assert 0 < found["unusable_bytes"] < started["unusable_bytes"]
        assert found["bytes"] == nbytes(tmp_path) <= limit
        for text in texts[3:]:
            turn(daemon, text)
        found = daemon.saved()
        assert found["unusable_bytes"] == 0
        assert found["bytes"] == nbytes(tmp_path) <= limit
        assert not useless & set(state_files(tmp_path))
        assert daemon.stop() == 0
    with daemon_on(tmp_path, disk_cache_bytes=limit) as daemon:
        assert turn(daemon, texts[-1])[1] > 1_900, "the last used are there"


def test_the_floor_of_free_disk_is_never_crossed(tmp_path: Path, left: Leaves) -> None:
    folder = left("sliceable").copied(tmp_path / "disk")
    assert state_files(folder)
    with daemon_on(folder, disk_cache_free_bytes=1 << 60, **IDLE) as daemon:
        daemon.wait_until(lambda engine: not state_files(folder))
        turn(daemon, HEAD)
        found = daemon.wait_until(lambda engine: engine["disk"]["skipped_writes"])["disk"]
        assert found["floor_bytes"] == 1 << 60
        assert (found["bytes"], found["written_bytes"]) == (0, 0)
        assert daemon.stop() == 0
    assert not state_files(folder)
