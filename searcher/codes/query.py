"""A query of an executor with codes: what its scans proposed, and which of its rows are scored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.codes.source import ReadError
from searcher.executor import Search

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(slots=True)
class CodesQuery:
    """A query in hand.

    `count`: of rows that a scan proposes; `candidates`: rows and estimates of its scanned parts;
    `unscanned`: parts that are not scanned; `unscored`: rows that are not scored yet, -1 before its
    last scan has ended.
    """

    search: Search
    tiers: tuple[Tier, ...]
    count: int
    margin: float
    started_us: int
    has_last_part: bool = False
    unscanned: int = 0
    candidates: list[tuple[Int64, Float32]] = field(default_factory=list)
    unscored: int = -1
    scores: list[Float32] = field(default_factory=list)
    rows: list[Int64] = field(default_factory=list)
    errors: dict[ClusterId, ReadError] = field(default_factory=dict)
    bytes_read: int = 0
    search_us: int = 0

    def take_candidates(self) -> tuple[Int64, Float32]:
        """Returns the best `count` rows of all parts that were scanned, and their estimates.

        Both (n,), best first. Forgets them.
        """
        found, self.candidates = self.candidates, []
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        rows, estimates = found[0]
        if len(found) > 1:
            rows, estimates = map(np.concatenate, zip(*found, strict=True))
            order = np.argsort(-estimates, kind="stable")[: self.count]
            rows, estimates = rows[order], estimates[order]
        kept = rows >= 0
        return rows[kept], estimates[kept]

    def best_rows(self) -> tuple[Int64, Float32]:
        """Returns the best rows that were scored, at most `top_k`, and their exact scores."""
        if not self.rows:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        rows, scores = np.concatenate(self.rows), np.concatenate(self.scores)
        order = np.lexsort((rows, -scores))[: self.search.top_k]
        return rows[order], scores[order]
