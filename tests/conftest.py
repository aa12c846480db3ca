"""Shared set-up: the fast BLAS has to be in place before any test module imports mlx, float32 is
float32 on every GPU, and no test fails because the machine is busy."""

import gc
import os

import pytest
from hypothesis import settings

from mlx_backend.blas import prefer_openblas

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share the cores already
prefer_openblas()
os.environ.setdefault("MLX_ENABLE_TF32", "0")  # newer GPUs would round the factors of batches only
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Many tests ask the collector what is left: not of a million objects of imports each time."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-minutes", type=float, default=0, help="how long no body may make the daemon fail"
    )


@pytest.fixture
def fuzz_minutes(request: pytest.FixtureRequest) -> float:
    """0: only a short look."""
    return float(request.config.getoption("--fuzz-minutes"))
