"""What is on its way to the disk while the tree changes: nothing else of it stays in memory."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.saving import Saving
from mlx_backend.messages import CacheKind
from tests.engine.harness import every_caching_kind, words
from tests.engine.slow_disk import SlowDisk, restarted

PROMPTS = [words(4_000, seed) for seed in range(3)]


def begun(folder: Path, kind: CacheKind) -> tuple[SlowDisk, Saving]:
    """A tree on its way to a disk, whose writer has yet to write the first file."""
    disk = SlowDisk(folder, kind)
    disk.look_through()
    for prompt in PROMPTS:
        disk.tell(prompt)
    options = disk.tier.options
    disk.tier.options = replace(options, limits=replace(options.limits, pending_bytes=2))
    saving = Saving(disk.cache, disk.archive, disk.tier)
    saving.go_on()
    return disk, saving


def to_the_end(disk: SlowDisk, saving: Saving) -> None:
    for _ in range(100):
        disk.write()
        saving.go_on()
        if saving.is_over:
            return
    raise AssertionError("it goes on without end")


@every_caching_kind
@pytest.mark.parametrize("is_given_up", [False, True], ids=["going on", "given up"])
def test_what_leaves_the_tree_before_it_is_handed_over_leaves_memory(
    is_given_up: bool, kind: CacheKind, tmp_path: Path
) -> None:
    disk, saving = begun(tmp_path, kind)
    alive = [weakref.ref(span) for kept in disk.cache.states() for span in kept.spans]
    assert alive
    if is_given_up:
        saving.give_up()
    disk.cache.clear()
    disk.write()
    gc.collect()
    assert not [span for span in alive if span() is not None]
    to_the_end(disk, saving)


@every_caching_kind
def test_a_state_that_has_to_wait_for_the_writer_is_written_whole(
    kind: CacheKind, tmp_path: Path
) -> None:
    disk, saving = begun(tmp_path, kind)
    to_the_end(disk, saving)
    assert saving.is_whole
    again = restarted(tmp_path, kind)
    for prompt in PROMPTS:
        assert again.tell(prompt).usage.read <= 16
