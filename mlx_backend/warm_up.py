"""The last step of a load: a short read and one token, so that no request waits for kernels.

A GPU's kernels are compiled, and its pipelines made, when they are first used, which would cost the
first request of a fresh model its time. What was read is also looked at, whether it could come back
from a disk. The row is thrown away, and nothing of it is counted.
"""

from __future__ import annotations

import logging
import time
from dataclasses import fields

from mlx_backend.errors import ModelUnsupported, StepFailed
from mlx_backend.interface import Backend
from mlx_backend.messages import CacheKind, Sampling, token_ids
from mlx_backend.round_trip import complaint

log = logging.getLogger(__name__)

READ_TOKENS = 32
"""Enough that matrices are multiplied as they are for a chunk."""


def warm_up(backend: Backend, vocabulary_size: int, kind: CacheKind) -> str:
    """On the thread that owns the backend. Raises ModelUnsupported if the model cannot run.

    Why nothing of it is to be kept on disk; "" where there is no reason.
    """
    started = time.monotonic()
    prompt = token_ids([index % vocabulary_size for index in range(READ_TOKENS + 1)])
    try:
        row = backend.open_row(None, len(prompt) + 1)
        try:
            backend.read(row, prompt[:-1])
            refusal = complaint(backend, row, kind)
            backend.start_decoding(row, int(prompt[-1]), Sampling(temperature=1.0), prompt)
            backend.step()
        finally:
            backend.release(row)
    except StepFailed as error:
        raise ModelUnsupported(f"The model does not run: {error}") from error
    for field in fields(backend.counters):
        setattr(backend.counters, field.name, 0)
    backend.trim_pool()
    log.info("warmed up in %.2f s", time.monotonic() - started)
    return refusal
