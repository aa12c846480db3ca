"""A file that is wrong costs its own tokens: never an answer, never a request, and not twice."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_backend.messages import CacheKind
from tests.disk_cache.shelf import opening_fails
from tests.engine.harness import every_caching_kind, words
from tests.engine.slow_disk import filled, restarted
from tests.fakes import Script
from tests.state_files import about, cut_short, flip_a_bit, state_files

LONG = words(4_000, 1)
BLOCKS = 4


def files(folder: Path) -> list[Path]:
    """All files of the cache: blocks from the first token on, then checkpoints."""
    return sorted(state_files(folder), key=place)


def place(file: Path) -> tuple[bool, int]:
    said = about(file)
    return said["kind"] == "checkpoint", int(said["end"])


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, Path.unlink])
@pytest.mark.parametrize("bad", range(BLOCKS))
@every_caching_kind
def test_a_bad_file_costs_what_it_holds_and_what_stands_on_it(
    kind: CacheKind, bad: int, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    damage(files(tmp_path)[bad])
    turn = disk.tell([*LONG, *words(50, 2)])
    restorable = 1024 * bad if kind is CacheKind.SLICEABLE else 0
    assert turn.usage.reused == restorable
    assert turn.from_disk.tokens == restorable
    assert turn.reason is not None
    assert turn.reason.code == "restore_failed"
    status = disk.tier.status()
    assert status.bad_files == 1
    disk.write()
    assert len(files(tmp_path)) == bad, "what nobody can use any more is kept"


def test_where_a_checkpoint_is_bad_an_earlier_one_serves(tmp_path: Path) -> None:
    kind = CacheKind.CHECKPOINTED
    filled(tmp_path, kind, LONG[:3_000], LONG)
    disk = restarted(tmp_path, kind)
    flip_a_bit(files(tmp_path)[-1])
    flip_a_bit(files(tmp_path)[-2])
    turn = disk.tell([*LONG, *words(50, 2)])
    assert turn.usage.reused == 2_999
    assert len(disk.names_read) == len(set(disk.names_read)), "a file was read twice"


@every_caching_kind
def test_where_descriptors_are_wanting_a_prompt_is_read_and_the_files_serve_the_next(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    with opening_fails(OSError(errno.EMFILE, "too many open files")):
        turn = disk.tell(LONG)
    assert turn.usage.read == len(LONG)
    assert len(disk.names_read) == len(set(disk.names_read)), "it is tried again and again"
    assert disk.tier.status().bad_files == 0
    assert restarted(tmp_path, kind).tell([*LONG, *words(50, 2)]).usage.read <= 50 + 16


@every_caching_kind
def test_a_file_that_does_not_fit_the_model_is_not_tried_twice(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    disk.script.faults.imports = 1
    disk.tell(LONG)
    assert disk.tier.status().bad_files == 1
    assert disk.script.faults.imports == 0
    disk.write()
    assert not files(tmp_path), "the first of all blocks was bad"


@every_caching_kind
def test_files_of_another_format_of_state_are_a_clean_miss(kind: CacheKind, tmp_path: Path) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind, script=Script(yields=False, span_token_bytes=32))
    turn = disk.tell(LONG)
    assert turn.usage.reused == 0
    assert disk.tier.status().bad_files == 1
    disk.save()
    again = restarted(tmp_path, kind, script=Script(yields=False, span_token_bytes=32))
    assert again.tell(LONG).usage.read <= 16, "the new format is not kept in its stead"


@every_caching_kind
def test_what_cannot_be_restored_goes_from_the_disk_too(kind: CacheKind, tmp_path: Path) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    disk.script.faults.restores = 1
    history = [*LONG, *words(50, 2)]
    turn = disk.tell(history)
    assert turn.usage.reused == 0
    reason = disk.status(turn).reason
    assert reason is not None
    assert reason.code == "restore_failed"
    assert disk.tier.status().bad_files > 0
    for number in range(3, 8):
        history = [*history, *words(50, number)]
        assert disk.tell(history).usage.read <= 50 + 16, "it does not get better"
    disk.save()
    again = restarted(tmp_path, kind)
    assert again.tell([*history, *words(50, 9)]).usage.read <= 50 + 16


@every_caching_kind
def test_what_could_not_be_restored_is_not_restored_after_a_restart(
    kind: CacheKind, tmp_path: Path
) -> None:
    filled(tmp_path, kind, LONG)
    disk = restarted(tmp_path, kind)
    disk.script.faults.restores = 1
    disk.tell(LONG)
    disk.write()
    again = restarted(tmp_path, kind)
    reused = again.tell(LONG).usage.reused
    assert reused <= 3 * 1024, "the last of its files is used again"
