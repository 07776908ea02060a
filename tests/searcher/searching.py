"""An executor at work on a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carpool.codes.row_mask import RowMask
from carpool.telemetry.metrics import Metrics
from schemas.document import Corpus
from searcher.build import SearchPlane
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.local import SearchThread
from searcher.snapshot import Snapshot
from tests.waiting import WAIT_S


class Searching:
    """Searches with the executor of a plane, which it closes."""

    def __init__(self, plane: SearchPlane, metrics: Metrics) -> None:
        self.executor = plane.executor
        self.metrics = metrics
        self._snapshot: Snapshot | None = None
        self._thread = SearchThread(plane)

    def search(self, searches: Sequence[Search]) -> dict[int, SearchResult | None]:
        self.executor.join(SearchGroup(searches=tuple(self.seeing(searches))))
        return self.take(len(searches))

    def hide_all_but(self, mask: RowMask) -> None:
        self._snapshot = Snapshot(corpus=Corpus(base="b"), mask=mask)

    def seeing(self, searches: Sequence[Search]) -> list[Search]:
        return [replace(each, snapshot=each.snapshot or self._snapshot) for each in searches]

    def take(self, count: int) -> dict[int, SearchResult | None]:
        taken = [self._thread.take(WAIT_S) for _ in range(count)]
        found = {search.key: result for search, result in taken}
        assert len(found) == count, "a search ended twice"
        return found

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels or None) or 0.0

    def close(self) -> None:
        """Checks that the executor did not break, and lost nothing."""
        self.executor.stop()
        self._thread._thread.join(WAIT_S)
        assert not self._thread._thread.is_alive()
        self.executor.check_integrity()
        self._thread.close()
        try:
            while True:
                self._thread.take(0)
        except TimeoutError:
            return
