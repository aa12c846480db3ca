"""The device's memory: what is in use, how much the allocator may pool, what a cache may take.

mlx keeps freed buffers in a pool, up to nearly the whole working set unless told otherwise; on a
machine whose memory is shared with the user's programs that is far too much. Nothing is wired.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import mlx.core as mx

from mlx_backend.messages import MemoryReport

POOL_SHARE = 16
"""The pool may hold one part in this many of the machine's memory."""
MIN_POOL_BYTES = 256 << 20
MAX_POOL_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of memory in all, and what the GPU had better stay within (None without one)."""

    memory_bytes: int
    working_set_bytes: int | None = None


def this_machine() -> Machine:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not mx.metal.is_available():
        return Machine(memory_bytes)
    working_set = mx.device_info().get("max_recommended_working_set_size")
    return Machine(memory_bytes, int(working_set) if working_set else None)


def pool_limit_bytes(machine: Machine) -> int:
    """How much freed memory the allocator may keep: a chunk's scratch, not a machine's worth."""
    share = machine.memory_bytes // POOL_SHARE
    return min(max(share, MIN_POOL_BYTES), MAX_POOL_BYTES)


def default_cache_bytes(machine: Machine, weight_bytes: int, context_row_bytes: int) -> int:
    """The prefix cache's default limit.

    A quarter of the GPU's recommended working set, but no more than the weights and one row of a
    whole context leave of it; without a GPU a quarter of the memory.
    """
    if machine.working_set_bytes is None:
        return machine.memory_bytes // 4
    left = machine.working_set_bytes - weight_bytes - context_row_bytes
    return max(0, min(machine.working_set_bytes // 4, left))


def limit_pool() -> None:
    """Apply `pool_limit_bytes` to this process."""
    mx.set_cache_limit(pool_limit_bytes(this_machine()))


def memory_report() -> MemoryReport:
    return MemoryReport(
        active_bytes=mx.get_active_memory(),
        pooled_bytes=mx.get_cache_memory(),
        peak_bytes=mx.get_peak_memory(),
    )


def trim_pool() -> None:
    """Give every pooled buffer back to the system."""
    mx.clear_cache()
