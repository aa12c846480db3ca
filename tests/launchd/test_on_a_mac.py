"""What only a Mac can show of the edges: its own tools, asked for nothing that hurts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launchd.backups import keep_out
from launchd.power import Caffeine, power_state, spawn_tool
from launchd.tools import run_tool

pytestmark = pytest.mark.skipif(sys.platform != "darwin", reason="asks macOS' own tools")


def assertions() -> str:
    return subprocess.run(
        ["/usr/bin/pmset", "-g", "assertions"], capture_output=True, text=True, check=True
    ).stdout


def test_the_machine_is_kept_from_idle_sleep_and_let_go():
    caffeine = Caffeine(spawn_tool, os.getpid())
    caffeine.start()
    try:
        assert caffeine.is_kept_awake
        deadline = time.monotonic() + 5
        while "caffeinate" not in assertions():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        caffeine.end()
    assert not caffeine.is_kept_awake


def test_power_and_heat_are_read_without_an_error():
    found = power_state(run_tool)
    assert found.heat in ("", "nominal", "fair", "serious", "critical")


def test_a_folder_is_kept_out_of_time_machine():
    folder = Path.home() / "Library" / "Caches" / f"mlxd-test-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        if refusals := keep_out([folder], run_tool):
            pytest.skip(refusals[0])
        said = run_tool(("/usr/bin/tmutil", "isexcluded", str(folder))).stdout
        assert "[Excluded]" in said
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder)], check=True)
