"""What was read stays read: daemons that are stopped, killed, and find what others left on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Daemon, running
from tests.fakes import filler

KINDS = ["sliceable", "checkpointed"]
HEAD = filler(1_200, 1)
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


def saved(daemon: Daemon) -> dict[str, Any]:
    """The disk's status once everything is on it that is to be."""

    def is_saved(engine: dict[str, Any]) -> bool:
        stage = next(each for each in engine["model"]["stages"] if each["name"] == "saved")
        is_over = stage["is_reached"] or stage["in_seconds"] is None
        return is_over and not engine["disk"]["pending_bytes"]

    return daemon.wait_until(is_saved)["disk"]


def state_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in state_files(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_at_a_stop_is_found_after_the_start(tmp_path: Path, kind: str) -> None:
    """Two conversations in one process, the second of which goes on: J10."""
    with daemon_on(tmp_path, kind) as daemon:
        turn(daemon, HEAD + "first")
        answer, _, prompt = turn(daemon, HEAD + "second")
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()
    with daemon_on(tmp_path, kind) as daemon:
        after, reused, _ = turn(daemon, HEAD + "second", answer, "go on")
        assert reused >= prompt - TAIL
        last = daemon.http.get("/mlxd/requests").json()["data"][-1]
        assert last["from_disk"] == last["reused"] == reused
        assert last["disk_bytes"] > 0
        assert disk(daemon)["hits"] == 1
    with daemon_on(tmp_path / "empty", kind) as cold:
        assert turn(cold, HEAD + "second", answer, "go on")[:2] == (after, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_torn_or_wrong_are_read_again_and_gone(tmp_path: Path, kind: str) -> None:
    """Cut short, changed by a bit, begun and never ended: J8."""
    texts = [filler(1_500, seed) for seed in range(3)]
    with daemon_on(tmp_path, kind) as daemon:
        said = [turn(daemon, text)[0] for text in texts]
        assert daemon.stop() == 0
    torn, changed, good = ends_of_conversations(tmp_path)
    cut_short(torn)
    change_a_bit(changed)
    begun = good.with_suffix(".safetensors.0123456789abcdef.tmp")
    begun.write_bytes(b"begun")
    with daemon_on(tmp_path, kind) as daemon:
        again = [turn(daemon, text) for text in texts]
        assert [answer for answer, _, _ in again] == said
        is_whole = [reused >= prompt - TAIL for _, reused, prompt in again]
        assert sorted(is_whole) == [False, False, True], "what is wrong costs the others nothing"
        assert disk(daemon)["bad_files"] >= 1
        assert not begun.exists()
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()
    with daemon_on(tmp_path, kind) as daemon:
        again = [turn(daemon, text) for text in texts]
        assert [answer for answer, _, _ in again] == said
        assert all(reused >= prompt - TAIL for _, reused, prompt in again), "written anew"
        assert disk(daemon)["bad_files"] == 0


def ends_of_conversations(folder: Path) -> list[Path]:
    """The last block of each; the first one is shared, since all prompts begin alike."""

    def start(file: Path) -> int:
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        return int(json.loads(data[8 : 8 + size])["__metadata__"]["start"])

    return [file for file in state_files(folder) if ".block." in file.name and start(file) > 1_000]


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:8])


def change_a_bit(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 4
    file.write_bytes(changed)


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
        found = saved(daemon)
        assert found["evicted_files"] > started["evicted_files"]
        assert 0 < found["unusable_bytes"] < started["unusable_bytes"]
        assert found["bytes"] == nbytes(tmp_path) <= limit
        for text in texts[3:]:
            turn(daemon, text)
        found = saved(daemon)
        assert found["unusable_bytes"] == 0
        assert found["bytes"] == nbytes(tmp_path) <= limit
        assert not useless & set(state_files(tmp_path))
        assert daemon.stop() == 0
    with daemon_on(tmp_path, disk_cache_bytes=limit) as daemon:
        assert turn(daemon, texts[-1])[1] > 1_900, "the last used are there"


def test_the_floor_of_free_disk_is_never_crossed(tmp_path: Path) -> None:
    with daemon_on(tmp_path) as daemon:
        turn(daemon, HEAD)
        assert daemon.stop() == 0
    assert state_files(tmp_path)
    with daemon_on(tmp_path, disk_cache_free_bytes=1 << 60, **IDLE) as daemon:
        daemon.wait_until(lambda engine: not state_files(tmp_path))
        turn(daemon, HEAD)
        found = daemon.wait_until(lambda engine: engine["disk"]["skipped_writes"])["disk"]
        assert found["floor_bytes"] == 1 << 60
        assert (found["bytes"], found["written_bytes"]) == (0, 0)
        assert daemon.stop() == 0
    assert not state_files(tmp_path)
