"""A model's folder looked through: what comes out stands well, down to the first token."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.disk_cache.files import StoredFile
from daemon.disk_cache.scan import survey
from tests.disk_cache.shelf import (
    MODEL,
    block,
    chain_of,
    checkpoint,
    model_of,
    names_of,
    path_of,
    scanned,
    tokens_of,
    written,
)

LONG = tokens_of(1, 3000)
FORK = np.concatenate([LONG[:700], tokens_of(2, 500)])


def test_files_come_with_all_that_was_written_of_them(tmp_path: Path) -> None:
    files = chain_of(LONG, 1024, 1100, 2000)
    files.append(checkpoint(LONG[:1900], files[2], label="head"))
    paths = written(tmp_path, *files)
    found = scanned(tmp_path)
    assert (found.identity, found.bad, len(found.files)) == (MODEL, 0, 4)
    for (file, used_at), path in zip(found.files, paths, strict=True):
        assert file.nbytes == path.stat().st_size
        assert used_at == path.stat().st_mtime
    for (file, _), meant in zip(found.files, files, strict=True):
        assert described(file) == described(meant)
        assert np.array_equal(file.tokens, meant.tokens)
        assert file.tokens.dtype == np.int32


def described(file: StoredFile) -> tuple[object, ...]:
    return (file.identity, file.kind, file.key, file.parent, file.start, file.end, file.label)


def test_what_forks_inside_a_block_stands_on_it(tmp_path: Path) -> None:
    trunk = block(LONG[:1000])
    files = (trunk, block(FORK, 700, trunk), checkpoint(LONG[:300], trunk))
    written(tmp_path, *files)
    found = scanned(tmp_path)
    assert found.bad == 0
    assert set(names_of(found)) == {file.name for file in files}


def test_a_checkpoint_at_the_end_of_a_block_has_its_key_and_carries_nothing(tmp_path: Path) -> None:
    files = chain_of(LONG, 500, 900)
    files.append(checkpoint(LONG[:500], files[0]))
    assert files[2].key == files[0].key
    written(tmp_path, *files)
    found = scanned(tmp_path)
    assert (set(names_of(found)), found.bad) == ({file.name for file in files}, 0)


def test_a_model_of_which_nothing_is_there_is_empty(tmp_path: Path) -> None:
    assert (scanned(tmp_path / "none").files, scanned(tmp_path / "none").bad) == ((), 0)


def test_other_models_files_are_not_looked_at(tmp_path: Path) -> None:
    mine, other = block(LONG[:10]), block(LONG[:10], identity="other")
    written(tmp_path, mine, other)
    path_of(tmp_path, mine).write_bytes(b"")
    found = scanned(tmp_path, "other")
    assert (names_of(found), found.bad) == ([other.name], 0)
    assert path_of(tmp_path, mine).exists()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_what_stands_on_nothing_is_deleted(tmp_path: Path, gone: int) -> None:
    files = chain_of(LONG, 500, 900, 1300)
    files.append(checkpoint(LONG[:1300], files[2]))
    paths = written(tmp_path, *files)
    paths[gone].unlink()
    found = scanned(tmp_path)
    assert names_of(found) == [file.name for file in files[:gone]]
    assert found.bad == 0, "nothing is wrong with them"
    assert [path.exists() for path in paths] == [place < gone for place in range(4)]


@pytest.mark.parametrize(
    ("start", "parent"),
    [(500, 0), (500, 1), (100, 1), (900, 0), (0, 0), (450, None)],
    ids=["not its end", "above", "its beginning", "behind it", "the very start", "on nothing"],
)
def test_a_block_that_does_not_stand_where_it_says_is_deleted(
    tmp_path: Path, start: int, parent: int | None
) -> None:
    """Its name is that of its tokens with those below it, which are others where it stands."""
    below = chain_of(LONG, 500, 900)
    other = np.concatenate([tokens_of(3, start), LONG[start : start + 50]])
    odd = block(other, start, None if parent is None else below[parent])
    written(tmp_path, *below, odd)
    found = scanned(tmp_path)
    assert names_of(found) == [file.name for file in below]
    assert found.bad == 1


def test_a_block_that_repeats_its_parents_first_token_is_deleted(tmp_path: Path) -> None:
    below = chain_of(LONG, 500, 520)
    odd = block(LONG[:550], 500, below[1])
    written(tmp_path, *below, odd)
    assert scanned(tmp_path).bad == 1


def test_a_checkpoint_of_other_tokens_is_deleted(tmp_path: Path) -> None:
    trunk = block(LONG[:100])
    odd = checkpoint(tokens_of(4, 50), trunk)
    good = checkpoint(LONG[:50], trunk)
    written(tmp_path, trunk, odd, good)
    found = scanned(tmp_path)
    assert (names_of(found), found.bad) == ([trunk.name, good.name], 1)


def test_a_file_whose_footing_was_listed_too_early_is_no_orphan(tmp_path: Path) -> None:
    """The writer goes on while the folder is looked through; what comes after a file was listed
    is not in the list, but what the file stands on is there."""
    below, above = chain_of(LONG, 500, 900)
    written(tmp_path, above)
    with model_of(tmp_path) as model:
        steps = survey(model, MODEL)
        assert next(steps) is None
        written(tmp_path, below)
        outcome = list(steps)[-1]
    assert outcome is not None
    assert [file.name for file, _ in outcome.good] == [below.name, above.name]
    assert outcome.bad == {}


def test_a_file_that_is_deleted_meanwhile_is_nobodys_fault(tmp_path: Path) -> None:
    files = chain_of(LONG, 500, 900, 1300)
    paths = written(tmp_path, *files)
    with model_of(tmp_path) as model:
        steps = survey(model, MODEL)
        assert next(steps) is None
        for path in paths:
            path.unlink()
        outcome = list(steps)[-1]
    assert outcome is not None
    assert outcome.bad == {}


def test_an_orphan_that_is_deleted_meanwhile_is_nobodys_fault(tmp_path: Path) -> None:
    above = chain_of(LONG, 500, 900)[1]
    (path,) = written(tmp_path, above)
    with model_of(tmp_path) as model:
        steps = survey(model, MODEL)
        assert next(steps) is None
        path.unlink()
        outcome = list(steps)[-1]
    assert outcome is not None
    assert outcome.bad == {}
    assert outcome.good == []


def test_what_stands_on_a_torn_file_goes_and_one_file_was_bad(tmp_path: Path) -> None:
    paths = written(tmp_path, *chain_of(LONG, 500, 900, 1300))
    os.truncate(paths[1], 8)
    found = scanned(tmp_path)
    assert (len(found.files), found.bad) == (1, 1)
    assert [path.exists() for path in paths] == [True, False, False]


def test_a_file_that_strayed_from_another_model_is_said_to_be_that(tmp_path: Path) -> None:
    stray = block(LONG[:10], identity="other")
    (path,) = written(tmp_path, stray)
    with model_of(tmp_path) as model:
        path.rename(tmp_path / MODEL / stray.name)
        outcome = list(survey(model, MODEL))[-1]
    assert outcome is not None
    assert outcome.bad == {stray.name: "it is another model's"}


@st.composite
def trees(draw: st.DrawFn) -> list[StoredFile]:
    """Conversations that fork anywhere, as blocks of few tokens out of few, and checkpoints."""
    files = dict[str, StoredFile]()
    sequences = dict[str, tuple[StoredFile, np.ndarray]]()
    for _ in range(draw(st.integers(1, 8))):
        grown = np.array(draw(st.lists(st.integers(0, 2), min_size=1, max_size=5)), np.int32)
        parent, below = None, np.empty(0, np.int32)
        if sequences and draw(st.booleans()):
            parent, tokens = sequences[draw(st.sampled_from(sorted(sequences)))]
            below = tokens[: draw(st.integers(parent.start + 1, parent.end))]
        tokens = np.concatenate([below, grown]).astype(np.int32)
        file = block(tokens, len(below), parent)
        if file.name in files:
            continue
        files[file.name] = file
        sequences[file.key] = (file, tokens)
        if draw(st.booleans()):
            end = draw(st.integers(file.start + 1, file.end))
            mark = checkpoint(tokens[:end], file)
            files.setdefault(mark.name, mark)
    return list(files.values())


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(trees(), st.data())
def test_of_any_tree_with_gaps_just_what_is_connected_is_good(
    tmp_path: Path, files: list[StoredFile], data: st.DataObject
) -> None:
    shutil.rmtree(tmp_path / MODEL, ignore_errors=True)
    written(tmp_path, *files)
    gone = data.draw(st.sets(st.sampled_from([file.name for file in files])))
    for name in gone:
        (tmp_path / MODEL / name).unlink()
    good, keys = set[str](), {""}
    for file in files:  # parents first
        if file.name not in gone and file.parent in keys:
            good.add(file.name)
            keys |= {file.key} if file.tokens.size else set()
    found = scanned(tmp_path)
    assert set(names_of(found)) == good
    assert found.bad == 0, "nothing is wrong with the others"
    assert {path.name for path in (tmp_path / MODEL).iterdir()} == good
    _parents_first([file for file, _ in found.files])


def _parents_first(files: list[StoredFile]) -> None:
    keys = {""}
    for file in files:
        assert file.parent in keys
        keys |= {file.key} if file.tokens.size else set()
