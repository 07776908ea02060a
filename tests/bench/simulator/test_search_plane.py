"""The simulator against the searcher's own search plane: the same windows, the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.simulator.search_plane import PlanSimulation
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.open_exact import ExactOptions, ExactPlane, open_exact_plane
from searcher.plan.cut import Slices
from searcher.settings import SearcherSettings
from tests.searcher.helpers import normalised, random_index

NLIST, DIMENSION, QUERIES, WINDOW = 24, 32, 160, 9
PAGE = 4096
CUT = ExactOptions(prefetch_bytes=16 * PAGE, read_ahead_bytes=24 * PAGE, slice_bytes_max=2 * PAGE)


@pytest.mark.parametrize(
    "options",
    [
        replace(CUT, prefetch_bytes=0, read_ahead_bytes=1),
        replace(CUT, slice_bytes_max=0),
        CUT,
    ],
)
def test_real_runs_read_the_bytes_of_the_simulator(tmp_path: Path, options: ExactOptions) -> None:
    written = random_index(tmp_path, rows=4_000, dimension=DIMENSION, nlist=NLIST, seed=3)
    index = open_index(written.dir)
    index.close()
    index_bytes = sum(extent.size_bytes for extent in index.extents)
    settings = SearcherSettings(
        budget_bytes=int(0.4 * index_bytes), scoring_threads=1, direct_io="auto"
    )
    # Overtaking a slow read changes what is read, so none is overtaken.
    options = replace(options, overtake_us=60_000_000)

    def opened(metrics: Metrics) -> ExactPlane:
        return open_exact_plane(index, settings, metrics, SystemClock(), options=options)

    vectors = normalised(np.random.default_rng(4).standard_normal((QUERIES, DIMENSION)))
    probes = probe(index.centroids, vectors, 4).tolist()
    windows = [range(at, min(at + WINDOW, QUERIES)) for at in range(0, QUERIES, WINDOW)]
    ahead = [{c for query in window for c in probes[query]} for window in windows[1:]] + [set()]

    plane = opened(Metrics())
    plane.close()
    slices = Slices(index.extents, index.layout, options.slice_bytes_max)
    simulation = PlanSimulation(plane.planner, [each.size_bytes for each in slices.extents])
    for window, soon in zip(windows, ahead, strict=True):
        wanted = {query: slices.of_all(tuple(map(ClusterId, probes[query]))) for query in window}
        horizon = dict.fromkeys(slices.of_all(tuple(map(ClusterId, sorted(soon)))), 1)
        simulation.search(wanted, horizon)
    plane.planner.check_integrity()
    assert simulation.bytes_read > index_bytes

    metrics = Metrics()
    thread = SearchThread(opened(metrics))
    for number, (window, soon) in enumerate(zip(windows, ahead, strict=True)):
        searches = tuple(
            Search(
                key=query,
                vector=vectors[query],
                clusters=tuple(map(ClusterId, probes[query])),
                top_k=10,
            )
            for query in window
        )
        horizon = dict.fromkeys(map(ClusterId, sorted(soon)), 1)
        thread.join(SearchGroup(searches=searches, window=number, horizon=horizon))
        for _ in window:
            _, found = thread.take(60.0)
            assert found is not None and not found.skipped
    thread.close()
    read = [
        metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose}) or 0
        for purpose in ("demand", "prefetch")
    ]
    assert sum(read) == simulation.bytes_read
