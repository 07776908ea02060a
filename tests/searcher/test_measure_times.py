"""Times of scans are measured over real codes, and fit a line."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
import pytest

from searcher.measure_times import BatchScans, TimeRounds
from searcher.plan.search_times import fit_search_times
from tests.clocks import HandClock

COST_US = 10


class CountedScans:
    """Takes no time but what it adds to a clock: so much a cluster. Keeps what it was given."""

    def __init__(self, clock: HandClock) -> None:
        self.clock, self.calls, self.lock = clock, [], Lock()

    def scan(self, queries: np.ndarray, probes: Sequence[np.ndarray], count: int) -> None:
        with self.lock:
            self.calls.append([one.tolist() for one in probes])
            self.clock.sleep(sum(COST_US * len(one) for one in probes))


def test_the_line_of_a_machine_is_found() -> None:
    clock = HandClock()
    scanner = CountedScans(clock)
    random = np.random.default_rng(2)
    probes = [np.arange(16) for _ in range(50)]
    with BatchScans(scanner, "rabitq4", clock, threads=1) as scans:
        rounds = TimeRounds(scans, random.random((50, 4)), probes)
        for _ in range(3):
            rounds.scan()
        samples = rounds.samples()
    times = fit_search_times(samples, 1)
    assert times.scan_us == pytest.approx(16 * COST_US, rel=0.01)
    assert times.fixed_us + times.other_us * 8 < COST_US
    assert len({len(one) for call in scanner.calls for one in call}) == 4  # shares
    assert max(map(len, scanner.calls)) == 8


@pytest.mark.parametrize(("threads", "sizes"), [(1, [8, 8, 4]), (4, [5, 5, 5, 5])])
def test_threads_share_a_batch_and_queries_without_clusters_are_not_scanned(
    threads: int, sizes: list[int]
) -> None:
    clock = HandClock()
    scanner = CountedScans(clock)
    probes = [np.array([number]) for number in range(20)]
    probes.insert(3, np.empty(0, np.int64))
    with BatchScans(scanner, "rabitq4", clock, threads=threads) as scans:
        scans.time_us(np.zeros((21, 4), np.float32), probes)
    assert sorted(map(len, scanner.calls), reverse=True) == sizes
    scanned = [cluster for call in scanner.calls for (cluster,) in call]
    assert sorted(scanned) == list(range(20))


def test_a_failed_scan_is_raised() -> None:
    class Broken:
        def scan(self, *_: object) -> None:
            raise RuntimeError("a scan failed")

    with (
        BatchScans(Broken(), "rabitq4", HandClock(), threads=2) as scans,
        pytest.raises(RuntimeError, match="a scan failed"),
    ):
        scans.time_us(np.zeros((4, 4), np.float32), [np.array([0])] * 4)
