"""Keeping folders out of Time Machine and Spotlight: what can be fetched or made again.

Spotlight leaves out a folder with a file of a certain name, Time Machine one that `tmutil` has
marked; the mark is on the folder itself and stays. The file is made last, so that it says that
both is done, and a start that finds it asks no tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from launchd.tools import Run

TMUTIL = "/usr/bin/tmutil"
NEVER_INDEX = ".metadata_never_index"


def keep_out(folders: Iterable[Path], run: Run) -> list[str]:
    """Keep `folders`, as far as they are there, out of both; in words what did not work.

    What did not work is tried again at the next call.
    """
    refusals = (_keep_out(folder, run) for folder in folders if folder.is_dir())
    return [refusal for refusal in refusals if refusal]


def _keep_out(folder: Path, run: Run) -> str:
    marker = folder / NEVER_INDEX
    if marker.exists():
        return ""
    done = run((TMUTIL, "addexclusion", str(folder)))
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        return f"{folder} stays in Time Machine's backups: {said}"
    try:
        marker.touch()
    except OSError as error:
        return f"{folder} stays in Spotlight's index: {error}"
    return ""
