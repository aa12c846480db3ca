"""How the command ends: exit codes are part of the interface."""

from __future__ import annotations

import os
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit tells a script. 2 is a wrong command line."""

    READY = 0
    FAILED = 1
    STOPPED = 3
    STARTING = 4
    DEGRADED = 5
    CONFIGURATION = os.EX_CONFIG
