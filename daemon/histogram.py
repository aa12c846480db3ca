"""How values are spread, as Prometheus counts it. Imports nothing."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values were at most `bounds[i]` but above the bound before; the last of `counts`
    is of those above all bounds. `sum` is that of the values."""

    bounds: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
    counts: tuple[int, ...] = (0,) * 12
    sum: float = 0.0

    def with_value(self, value: float) -> Histogram:
        counts = list(self.counts)
        counts[bisect_left(self.bounds, value)] += 1
        return replace(self, counts=tuple(counts), sum=self.sum + value)
