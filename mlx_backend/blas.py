"""A faster BLAS for mlx on Linux, where the wheel carries a slow reference one.

Matrix products in float32 become some 50 times faster. Does nothing on macOS (Accelerate), and
nothing where OpenBLAS is not installed. Imports no mlx: it must run before `mlx.core` is imported.
"""

from __future__ import annotations

import ctypes
import sys


def prefer_openblas() -> bool:
    """Load OpenBLAS so that mlx's BLAS symbols resolve to it; True if it is in place."""
    if sys.platform != "linux" or "mlx.core" in sys.modules:
        return False
    try:
        ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
