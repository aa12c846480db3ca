"""The device's memory: what is in use, how much the allocator may pool, what rows may take.

mlx keeps freed buffers in a pool, up to nearly the whole working set unless told otherwise; on a
machine whose memory is shared with the user's programs that is far too much. Nothing is wired
unless that is asked for, and then the weights' bytes only: wired memory is taken from everybody
else for good, and a limit as high as mlx recommends has brought machines down.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import psutil

from mlx_backend.messages import MemoryReport

POOL_SHARE = 16
"""The pool may hold one part in this many of the machine's memory."""
MIN_POOL_BYTES = 256 << 20
MAX_POOL_BYTES = 4 << 30
MIN_BUDGET_BYTES = 256 << 20
"""A model that could be loaded is let answer something, however little its weights leave."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of memory in all, and what the GPU had better stay within (None without one)."""

    memory_bytes: int
    working_set_bytes: int | None = None


def this_machine() -> Machine:
    memory_bytes = int(psutil.virtual_memory().total)
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
    whole context leave of it; without a GPU a quarter of the memory. Where such a row would leave
    less than half of what the weights leave, half of that: rows take back what they need from the
    cache, while a limit of 0 would turn reuse off for a context that is seldom filled.
    """
    if machine.working_set_bytes is None:
        return machine.memory_bytes // 4
    free = max(0, machine.working_set_bytes - weight_bytes)
    return min(machine.working_set_bytes // 4, max(free - context_row_bytes, free // 2))


def default_budget_bytes(machine: Machine, weight_bytes: int) -> int:
    """What rows and prefix cache may take together, unless told otherwise.

    What the weights and a chunk's scratch leave of the GPU's recommended working set; without a
    GPU, of half of the memory.
    """
    share = machine.working_set_bytes or machine.memory_bytes // 2
    return max(MIN_BUDGET_BYTES, share - weight_bytes - pool_limit_bytes(machine))


def residency_bytes(machine: Machine) -> int:
    """What the weights of all loaded models and their prefix caches may take together.

    The GPU's recommended working set; without a GPU the memory.
    """
    return machine.working_set_bytes or machine.memory_bytes


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the allocator is told. `pool_bytes` None: what `pool_limit_bytes` says."""

    pool_bytes: int | None = None
    wire_weights: bool = False


@dataclass(frozen=True, slots=True)
class AppliedLimits:
    """What the allocator was told, in bytes; nothing is wired where there is no GPU."""

    pool_bytes: int
    wired_bytes: int


def limits_on(machine: Machine, limits: DeviceLimits, weight_bytes: int) -> AppliedLimits:
    """What `limits` come to on a machine. Weights that fill its working set are not wired."""
    pool_bytes = limits.pool_bytes
    if pool_bytes is None:
        pool_bytes = pool_limit_bytes(machine)
    can_wire = limits.wire_weights and weight_bytes < (machine.working_set_bytes or 0)
    return AppliedLimits(pool_bytes, weight_bytes if can_wire else 0)


def apply_limits(
    limits: DeviceLimits, weight_bytes: int, wired_elsewhere: int = 0
) -> AppliedLimits:
    """Apply `limits` to this process, where other models have so many bytes wired."""
    applied = limits_on(this_machine(), limits, weight_bytes)
    mx.set_cache_limit(applied.pool_bytes)
    if applied.wired_bytes:
        mx.set_wired_limit(applied.wired_bytes + wired_elsewhere)
    return applied


def release_limits(applied: AppliedLimits, wired_elsewhere: int = 0) -> None:
    """Unwire what was wired, since its model goes away; other models' stays."""
    if applied.wired_bytes:
        mx.set_wired_limit(wired_elsewhere)


def memory_report(applied: AppliedLimits) -> MemoryReport:
    return MemoryReport(
        active_bytes=mx.get_active_memory(),
        pooled_bytes=mx.get_cache_memory(),
        peak_bytes=mx.get_peak_memory(),
        pool_limit_bytes=applied.pool_bytes,
        wired_bytes=applied.wired_bytes,
    )


def trim_pool() -> None:
    """Give every pooled buffer back to the system."""
    mx.clear_cache()
