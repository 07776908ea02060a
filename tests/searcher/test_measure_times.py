"""Times of scans are measured over real codes, and fit a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from searcher.measure_times import BatchScans, TimeRounds
from searcher.plan.search_times import fit_search_times
from searcher.settings import SearcherSettings
from tests.searcher.codes_rig import make_index

COST_US = 10


class Costs(BatchScans):
    """So much a cluster. Keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def time_us(self, queries: np.ndarray, probes: Sequence[np.ndarray]) -> int:
        self.calls.append([len(one) for one in probes])
        return COST_US * sum(map(len, probes))


def test_the_line_of_a_machine_is_found() -> None:
    costs, random = Costs(), np.random.default_rng(2)
    rounds = TimeRounds(costs, random.random((50, 4)), [np.arange(16) for _ in range(50)])
    for _ in range(3):
        rounds.scan()
    times = fit_search_times(rounds.samples(), 1)
    assert times.scan_us == pytest.approx(16 * COST_US, rel=0.01)
    assert times.fixed_us + times.other_us * 8 < COST_US
    assert len({width for call in costs.calls for width in call}) == 4  # shares
    assert max(map(len, costs.calls)) == 64


def test_batches_are_scanned(tmp_path: Path) -> None:
    index = make_index(tmp_path, rows=600)
    opened = open_index(index.dir)
    probes = [np.arange(number % 4) for number in range(20)]
    codes = opened.open_codes()
    assert codes is not None
    scans = BatchScans(opened, codes, SearcherSettings(), SystemClock())
    assert scans.time_us(index.vectors[:20], probes) > 0
    assert scans.time_us(index.vectors[:1], probes[:1]) == 0
    opened.close()
