"""From records to figures: stage times and cache use. Pure; microseconds in, ms out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from bench.core.spread import Spread, spread
from schemas.retrieval import Retrieval

STAGES = (
    *("send_delay", "kafka_wait", "window_wait", "encode", "group", "queue_search", "load"),
    *("search", "passages", "return", "total"),
)
"""The stages of a query in order.

The benchmark measures `send_delay`, `return` and `total`; the services report the others.
"""


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """One query as it was sent and came back. Epoch microseconds."""

    intended_us: int
    sent_us: int
    received_us: int
    retrieval: Retrieval

    def stages_us(self) -> dict[str, int]:
        """Returns the time of each stage."""
        return {
            **self.retrieval.timings_us,
            "send_delay": self.sent_us - self.intended_us,
            "return": self.received_us - self.retrieval.completed_us,
            "total": self.received_us - self.intended_us,
        }


def stage_spreads_ms(timings_us: Iterable[Mapping[str, int]]) -> dict[str, Spread]:
    """Returns the spread of each stage: stages of `STAGES` in their order, then any others.

    A query counts only for the stages that it went through.
    """
    by_stage: dict[str, list[float]] = {}
    for timings in timings_us:
        for stage, took_us in timings.items():
            by_stage.setdefault(stage, []).append(took_us / 1_000)
    names = [stage for stage in STAGES if stage in by_stage] + sorted(by_stage.keys() - set(STAGES))
    return {stage: found for stage in names if (found := spread(by_stage[stage])) is not None}


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """Clusters that queries probed, by tier, and the bytes read for queries."""

    gpu: int
    ram: int
    ssd: int
    bytes_read: int

    @property
    def requests(self) -> int:
        """Probed clusters."""
        return self.gpu + self.ram + self.ssd

    @property
    def hit_share(self) -> float:
        """The share of clusters that were not read; 0 where none was probed."""
        return (self.gpu + self.ram) / self.requests if self.requests else 0.0


def cache_use(retrievals: Iterable[Retrieval]) -> CacheUse:
    """Returns the sums over `retrievals`."""
    tiers: Counter[str] = Counter()
    bytes_read = 0
    for retrieval in retrievals:
        tiers.update(probe.tier for probe in retrieval.probes)
        bytes_read += retrieval.bytes_read
    return CacheUse(gpu=tiers["gpu"], ram=tiers["ram"], ssd=tiers["ssd"], bytes_read=bytes_read)
