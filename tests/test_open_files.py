"""The limit of open files: raised as far as it may be, and never lowered."""

import subprocess
import sys

import pytest

from daemon.open_files import most_connections
from tests.e2e.processes import ROOT

CODE = """
import resource
from daemon.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected"),
    [
        (256, 1024, 512, "512 512 1024"),
        (256, 300, 512, "300 300 300"),
        (256, 256, 512, "256 256 256"),
        (900, 1024, 512, "900 900 1024"),
    ],
)
def test_the_soft_limit_is_raised_up_to_the_hard_one(
    soft: int, hard: int, wanted: int, expected: str
) -> None:
    code = CODE.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("limit", [64, 256, 8192])
def test_connections_leave_files_for_everything_else(limit: int) -> None:
    assert limit // 2 <= most_connections(limit) < limit
