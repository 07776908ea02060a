"""What a simulated run did: bytes, hits, and the latency of every query."""

from __future__ import annotations

import msgspec

from bench.core.spread import Spread, spread
from schemas.record import ClusterId


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`reads`: clusters in the order in which their reads began, `ahead` of them for the horizon;
    `read_us`: how long each read took; `hits` and `misses`: clusters that were resident, or not,
    when a query came that wanted them; `latency_us`: of each query, by its number.
    """

    bytes_read: int
    reads: tuple[ClusterId, ...]
    ahead: int
    hits: int
    misses: int
    latency_us: tuple[float, ...]
    read_us: tuple[float, ...]
    duration_us: float
    disk_busy_us: float

    @property
    def latency_ms(self) -> Spread:
        """How the latencies are spread."""
        found = spread(us / 1_000 for us in self.latency_us)
        assert found is not None, "nothing was asked"
        return found

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second."""
        return len(self.latency_us) / max(self.duration_us, 1e-9) * 1e6
