"""Folders that nobody needs to back up or to search."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from launchd.backups import keep_out


class FakeTmutil:
    def __init__(self, code: int = 0, said: str = "") -> None:
        self.code, self.said = code, said
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(tuple(arguments))
        return subprocess.CompletedProcess(arguments, self.code, "", self.said)


def test_a_folder_is_kept_out_of_both_once(tmp_path: Path):
    tmutil = FakeTmutil()
    for _ in range(2):
        assert keep_out([tmp_path, tmp_path / "not there"], tmutil) == []
    assert tmutil.calls == [("/usr/bin/tmutil", "addexclusion", str(tmp_path))]
    assert (tmp_path / ".metadata_never_index").is_file()


def test_what_did_not_work_is_said_and_tried_again(tmp_path: Path):
    tmutil = FakeTmutil(213, "Error (-50) while attempting to change exclusion setting.\n")
    for _ in range(2):
        assert keep_out([tmp_path], tmutil) == [
            f"{tmp_path} stays in Time Machine's backups: "
            "Error (-50) while attempting to change exclusion setting."
        ]
    assert len(tmutil.calls) == 2


def test_a_folder_that_takes_no_file_is_said(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".metadata_never_index").symlink_to(tmp_path / "none" / "there")
    [refusal] = keep_out([folder], FakeTmutil())
    assert "stays in Spotlight's index" in refusal
