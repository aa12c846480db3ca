"""Shared set-up: the fast BLAS has to be in place before any test module imports mlx."""

from mlx_backend.blas import prefer_openblas

prefer_openblas()
