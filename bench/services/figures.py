"""From records to figures: spreads, stage times, cache use, windows. Pure functions; times in
microseconds go in, ms come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.core.spread import Spread, spread
from schemas.group import Group
from schemas.retrieval import Retrieval

STAGES = (
    "send_delay",
    "kafka_wait",
    "window_wait",
    "encode",
    "group",
    "queue_search",
    "load",
    "search",
    "passages",
    "return",
    "total",
)
"""The way of a query, in order. `send_delay`, `return` and `total` are seen from outside, the rest
the services say.
"""


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """One query as it was sent and came back. Epoch microseconds; `arrived_us`: its retrieval was
    read by the benchmark.
    """

    intended_us: int
    sent_us: int
    arrived_us: int
    retrieval: Retrieval

    def stages_us(self) -> dict[str, int]:
        """Returns what each stage took: what the services say, and what is seen from outside."""
        return {
            **self.retrieval.timings_us,
            "send_delay": self.sent_us - self.intended_us,
            "return": self.arrived_us - self.retrieval.completed_us,
            "total": self.arrived_us - self.intended_us,
        }


def stage_spreads_ms(timings_us: Iterable[Mapping[str, int]]) -> dict[str, Spread]:
    """Returns the spread of each stage in milliseconds, known stages first and in their order.

    A stage that a query did not go through does not count for it, so that `count` may differ
    between stages.
    """
    by_stage: dict[str, list[float]] = {}
    for timings in timings_us:
        for stage, took_us in timings.items():
            by_stage.setdefault(stage, []).append(took_us / 1_000)
    names = [stage for stage in STAGES if stage in by_stage] + sorted(by_stage.keys() - set(STAGES))
    return {stage: found for stage in names if (found := spread(by_stage[stage])) is not None}


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """Clusters that queries probed, by the tier where they were found, and the bytes that were read
    because of queries.
    """

    gpu: int
    ram: int
    ssd: int
    bytes_read: int

    @property
    def requests(self) -> int:
        """Clusters asked for."""
        return self.gpu + self.ram + self.ssd

    @property
    def hit_share(self) -> float:
        """The share of clusters that did not have to be read; 0 where none was asked for."""
        return (self.gpu + self.ram) / self.requests if self.requests else 0.0


def cache_use(retrievals: Iterable[Retrieval]) -> CacheUse:
    """Returns what the retrievals say of the cache, added up."""
    tiers: Counter[str] = Counter()
    bytes_read = 0
    for retrieval in retrievals:
        tiers.update(probe.tier for probe in retrieval.probes)
        bytes_read += retrieval.bytes_read
    return CacheUse(gpu=tiers["gpu"], ram=tiers["ram"], ssd=tiers["ssd"], bytes_read=bytes_read)


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """How queries travelled together."""

    windows: int
    groups: int
    window_queries: Spread
    group_queries: Spread


def windows(groups: Iterable[Group]) -> Windows | None:
    """Returns the sizes of windows and groups, or None without groups. A group that was cut counts
    as its pieces.

    Windows are told apart by the process that planned them and its number for them.
    """
    queries: Counter[tuple[str, int]] = Counter()
    sizes = []
    for group in groups:
        queries[group.grouper, group.window_id] += len(group.queries)
        sizes.append(len(group.queries))
    window_queries, group_queries = spread(queries.values()), spread(sizes)
    if window_queries is None or group_queries is None:
        return None
    return Windows(
        windows=len(queries),
        groups=len(sizes),
        window_queries=window_queries,
        group_queries=group_queries,
    )


def evidence_share(
    found: Mapping[str, Sequence[str]], evidence: Mapping[str, frozenset[str]], first: int = 5
) -> float:
    """Returns the share of queries with one of its evidence pages among its `first` hits.

    Both map query ids; a query of `evidence` that found nothing counts as missed. Raises
    `ValueError` without evidence.
    """
    if not evidence:
        raise ValueError("no query has evidence: a share of nothing means nothing")
    hits = sum(
        not pages.isdisjoint(found.get(query_id, ())[:first])
        for query_id, pages in evidence.items()
    )
    return hits / len(evidence)
