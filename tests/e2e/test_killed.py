"""Processes that are killed while they write leave nothing behind that is wrong."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.processes import ROOT

COMMAND = [sys.executable, "-m", "tests.benchmarks.disk", "kill"]


def test_what_killed_processes_wrote_is_right_or_gone() -> None:
    """A few rounds of the benchmark: J8. In processes of their own, which fork before mlx runs."""
    few = ["--rounds", "2", "--turns", "2", "--kind", "tiny-hybrid"]
    done = subprocess.run([*COMMAND, *few], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills" in done.stdout
