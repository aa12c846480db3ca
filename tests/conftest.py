"""Shared set-up: the fast BLAS has to be in place before any test module imports mlx, and no
test fails because the machine is busy."""

from hypothesis import settings

from mlx_backend.blas import prefer_openblas

prefer_openblas()
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
