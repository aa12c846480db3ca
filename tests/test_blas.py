"""On Linux a daemon computes with OpenBLAS where it is installed: it has to be there before mlx."""

import subprocess
import sys
from ctypes.util import find_library

import pytest

ASKS_AS_A_DAEMON_DOES = """
from daemon.models import memory_for_models

memory_for_models()
print("/libopenblas" in open("/proc/self/maps").read())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or find_library("openblas") is None, reason="no OpenBLAS here"
)
def test_the_first_question_to_mlx_finds_the_faster_blas_in_place() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", ASKS_AS_A_DAEMON_DOES], capture_output=True, text=True, timeout=60
    )
    assert asked.stdout.strip() == "True", asked.stderr
