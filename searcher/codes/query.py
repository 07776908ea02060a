"""A query of an executor with codes: what its scans proposed, and which of its rows are scored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from carpool.arrays import Float32, Int64
from carpool.codes.margin import first_count, margin
from carpool.errors import ReadError
from schemas.record import ClusterId
from schemas.retrieval import Probe, Tier
from searcher.executor import Search
from searcher.row_source import Scanned


class Probes:
    """One object for each cluster and tier: a query may have hundreds of probes."""

    def __init__(self, nlist: int) -> None:
        self._nlist = nlist
        self._by_tier: dict[Tier, list[Probe]] = {}

    def of(self, tier: Tier) -> list[Probe]:
        """Returns those of a tier, by cluster."""
        if tier not in self._by_tier:
            clusters = map(ClusterId, range(self._nlist))
            self._by_tier[tier] = [Probe(cluster=cluster, tier=tier) for cluster in clusters]
        return self._by_tier[tier]


@dataclass(slots=True)
class CodesQuery:
    """A query in hand.

    `count` rows are to be proposed by a scan, and its estimates have the `margin`: see `promise`.
    `tiers` says where the clusters are that are not in memory. `scans` have not ended yet;
    `candidates` has the rows and estimates of those that have. `unscored` rows are not scored yet;
    it is -1 before the last scan has ended. The clusters in `lacking` are to be scanned again.
    """

    search: Search
    started_us: int
    tiers: dict[ClusterId, Tier] = field(default_factory=dict)
    count: int = 0
    margin: float = 0.0
    scans: int = 0
    candidates: list[tuple[Int64, Float32]] = field(default_factory=list)
    unscored: int = -1
    scores: list[Float32] = field(default_factory=list)
    rows: list[Int64] = field(default_factory=list)
    errors: dict[ClusterId, ReadError] = field(default_factory=dict)
    bytes_read: int = 0
    search_us: int = 0
    lacking: list[ClusterId] = field(default_factory=list)

    def promise(self, codec: str) -> None:
        """Widens `count` and `margin` for estimates of `codec`."""
        self.count = max(self.count, first_count(codec, self.search.top_k))
        self.margin = max(self.margin, margin(codec, len(self.search.vector)))

    def add(self, scanned: Scanned) -> None:
        """One of its scans has ended."""
        self.scans -= 1
        self.candidates.append((scanned.rows, scanned.estimates))
        self.errors.update(scanned.errors)
        self.bytes_read += scanned.bytes_read
        self.search_us += scanned.took_us
        self.lacking += scanned.lacking
        for cluster in scanned.lacking:
            self.tiers.pop(cluster, None)

    def probes(self, clusters: Iterable[ClusterId], known: Probes) -> tuple[Probe, ...]:
        """Returns `clusters` with the tiers where they were."""
        if not self.tiers:
            return tuple(map(known.of("ram").__getitem__, clusters))
        tiers: set[Tier] = {"ram", *self.tiers.values()}
        by_tier = {tier: known.of(tier) for tier in tiers}
        return tuple([by_tier[self.tiers.get(one, "ram")][one] for one in clusters])

    def take_candidates(self) -> tuple[Int64, Float32]:
        """Returns the best `count` rows of all scans, and their estimates.

        Both (n,), best first. Forgets them.
        """
        found, self.candidates = self.candidates, []
        rows, estimates = map(np.concatenate, zip(*found, strict=True))
        order = np.lexsort((rows, -estimates))[: self.count]
        kept = order[rows[order] >= 0]
        return rows[kept], estimates[kept]

    def score_fresh(self, proposed: Int64) -> Int64:
        """Scores the fresh ones of `proposed`, which are in memory; returns the others."""
        if (fresh := self.search.fresh) is None:
            return proposed
        are_fresh = proposed >= fresh.rows.first_row
        own = proposed[are_fresh]
        self.rows.append(own)
        self.scores.append(fresh.scores(self.search.vector, own))
        return proposed[~are_fresh]

    def best_rows(self) -> tuple[Int64, Float32]:
        """Returns the best rows that were scored, at most `top_k`, and their exact scores."""
        if not self.rows:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        rows, scores = np.concatenate(self.rows), np.concatenate(self.scores)
        order = np.lexsort((rows, -scores))[: self.search.top_k]
        return rows[order], scores[order]
