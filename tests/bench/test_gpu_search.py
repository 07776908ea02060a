"""The simulated searcher: the slower of its threads and of the GPU decides."""

from __future__ import annotations

import numpy as np
import pytest

from bench.generation.gpu_search import SearchCosts, ShardedSearch

COSTS = SearchCosts(
    threads=2, scan_ns=10, query_us=5, launch_us=50, gpu_bytes_per_s=1e9, row_bytes=100
)
ROWS = np.array([1_000, 2_000, 4_000], np.int64)
BOTH = np.array([0, 1])
NONE_HOT = np.zeros(3, bool)


def test_a_query_scans_its_misses_and_the_gpu_its_hits() -> None:
    assert ShardedSearch(COSTS, ROWS, NONE_HOT).batch_us([BOTH]) == pytest.approx(5 + 30)
    # The GPU reads 100,000 bytes of the first cluster in 100 us, after its launch.
    one_hot = ShardedSearch(COSTS, ROWS, np.array([True, False, False]))
    assert one_hot.batch_us([BOTH]) == pytest.approx(50 + 100)
    assert one_hot.batch_us([np.array([2])]) == pytest.approx(5 + 40)


@pytest.mark.parametrize(("queries", "in_turn"), [(1, 1), (2, 1), (3, 2), (16, 8), (18, 10)])
def test_threads_share_the_queries_of_a_batch(queries: int, in_turn: int) -> None:
    # Of the last two, the thread that is free first takes both, as in `CodesExecutor`.
    search = ShardedSearch(COSTS, ROWS, NONE_HOT)
    assert search.batch_us([BOTH] * queries) == pytest.approx(35 * in_turn)
