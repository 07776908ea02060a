"""Searches with a hot shard: results as without one, swaps during searches, devices that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from carpool.arrays import Float32, Int64
from carpool.codes.row_mask import RowMask
from carpool.disk.document_rows import first_rows
from carpool.disk.index import open_index
from carpool.disk.rotation import read_rotation
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import SearchGroup
from searcher.plan.hot_swaps import HotSwaps, Swaps
from searcher.row_source import Scan
from searcher.shard import scans
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.shard.device import ShardDevice, ShardFullError, ShardNumbers
from searcher.shard.gpu import GpuShard
from searcher.shard.hot_shard import HotShard
from searcher.shard.scans import ShardScans
from searcher.store.files import SegmentFiles
from searcher.store.waker import Waker
from tests.clocks import HandClock
from tests.searcher.codes_rig import (
    DIMENSION,
    NLIST,
    Running,
    cluster_ids,
    directions,
    make_index,
    missed,
    questions,
    running,
    scores_of,
)
from tests.searcher.helpers import SmallIndex, mask_of, normalised, some_visible, write_index
from tests.waiting import WAIT_S, wait_until

HOT = cluster_ids(0, 2, 3, 7, 8, 11)
ALL = cluster_ids(*range(NLIST))


@pytest.fixture(scope="module")
def index(codes_index: SmallIndex) -> SmallIndex:
    return codes_index


TIMEOUT_US = scans.TIMEOUT_US


@pytest.fixture(autouse=True)
def no_scan_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a scan takes long, above all one of a GPU's code on a CPU."""
    monkeypatch.setattr(scans, "TIMEOUT_US", int(WAIT_S * 1e6))


class FailingDevice:
    """A device of which calls can be made to fail, or to wait."""

    def __init__(self, device: ShardDevice) -> None:
        self.device = device
        self.codec, self.capacity_bytes = device.codec, device.capacity_bytes
        self.scan_error: Exception | None = None
        self.load_error: Exception | None = None
        self.may_scan = threading.Event()
        self.may_scan.set()
        self.may_load = threading.Event()
        self.may_load.set()
        self.scanned: list[tuple[ClusterId, ...]] = []
        self.dropped: list[ClusterId] = []
        self.size_bytes = device.size_bytes

    def load(self, cluster: ClusterId, first_row: int, vectors: Float32) -> None:
        assert self.may_load.wait(WAIT_S)
        if self.load_error is not None:
            raise self.load_error
        self.device.load(cluster, first_row, vectors)

    def drop(self, cluster: ClusterId) -> None:
        self.dropped.append(cluster)
        self.device.drop(cluster)

    def scan(
        self,
        queries: Float32,
        probes: Sequence[Int64],
        count: int,
        mask: RowMask | None = None,
    ) -> tuple[Int64, Float32]:
        assert self.may_scan.wait(2 * WAIT_S)  # longer than a test waits for results
        if self.scan_error is not None:
            raise self.scan_error
        self.scanned += [tuple(map(ClusterId, one.tolist())) for one in probes]
        return self.device.scan(queries, probes, count, mask)

    def close(self) -> None:
        self.device.close()


class NoSwaps(HotSwaps):
    """Changes nothing: tests say what is swapped."""

    def substage(self) -> Swaps | None:
        return None


@dataclass
class WithShard:
    here: Running
    shard: HotShard
    device: FailingDevice

    def wait_for(self, clusters: Sequence[ClusterId]) -> None:
        wait_until(lambda: self.shard.live == frozenset(clusters))


@contextmanager
def with_shard(
    index: SmallIndex,
    hot: Sequence[ClusterId] = HOT,
    *,
    numbers: ShardNumbers = "float16",
    paged_share: float | None = None,
) -> Iterator[WithShard]:
    opened, metrics = open_index(index.dir), Metrics()
    rotation = read_rotation(opened.dir, opened.manifest)
    device = FailingDevice(
        GpuShard(numbers, nlist=NLIST, rotation=rotation, bytes_max=16 << 20, device="cpu")
    )
    counts = [extent.row_count for extent in opened.extents]
    sizes = np.array([device.size_bytes(count) for count in counts])
    shard = HotShard(
        device,
        ClusterRowsReader(opened, SegmentFiles(index.paths, "auto")),
        NoSwaps(sizes, int(sizes.sum())),
        first_rows(opened.layout, opened.extents),
        metrics,
    )
    try:
        with running(index, paged_share=paged_share, shard=shard, metrics=metrics) as here:
            both = WithShard(here, shard, device)
            if hot:
                shard._orders.put(Swaps(leave=(), enter=tuple(hot)))
                both.wait_for(hot)
            yield both
            if shard.is_open:
                wait_until(lambda: not shard._pins)
    finally:
        opened.close()


@pytest.mark.parametrize("numbers", ["float16", "sq8"])
def test_a_promise_is_kept_and_scores_are_exact(index: SmallIndex, numbers: ShardNumbers) -> None:
    searches = questions(index, 150, 5)
    with with_shard(index, numbers=numbers) as both:
        found = both.here.search(searches)
    assert missed(index, searches, found) <= 4  # of 1,050 ids
    for search in searches:
        result = found[search.key]
        assert result is not None and not result.skipped
        np.testing.assert_allclose(
            result.best.scores, scores_of(index, search, result), rtol=0, atol=1e-6
        )
        assert {probe.cluster: probe.tier for probe in result.probes} == {
            cluster: "gpu" if cluster in HOT else "ram" for cluster in search.clusters
        }


def test_rows_that_are_hidden_take_no_place_in_a_result(index: SmallIndex) -> None:
    searches, are_visible = questions(index, 100, 5), some_visible(index)
    with with_shard(index) as both:
        both.here.hide_all_but(mask_of(index, are_visible))
        found = both.here.search(searches)
        assert both.device.scanned
    assert missed(index, searches, found, are_visible) <= 2, "of 700 ids"


def test_a_query_that_is_scanned_with_one_of_more_rows_finds_all_of_its_own(
    tmp_path: Path,
) -> None:
    # The rows of a cluster differ by less than what float16 rounds.
    centroids = directions(NLIST, DIMENSION, seed=3)
    rows = np.repeat(centroids, 500, axis=0)
    rows = normalised(rows + 1e-4 * directions(*rows.shape, seed=5)).astype(np.float32)
    near = write_index(tmp_path, rows, centroids, has_codes=True)
    search = questions(near, 1, 1)[0]
    other = replace(search, key=1, top_k=40)
    with with_shard(near, ALL) as both:
        found = both.here.search([search, other])
    assert missed(near, [search, other], found) == 0


def test_a_scan_that_ends_after_it_was_given_up_is_ignored(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "TIMEOUT_US", TIMEOUT_US)
    clock, waker = HandClock(), Waker()
    with with_shard(index) as both:
        shard_scans = ShardScans(both.shard, waker, clock)
        both.device.may_scan.clear()
        taken = shard_scans.take(HOT[:1])
        vector = index.centroids[HOT[0]]
        shard_scans.scan(Scan(key=0, vector=vector, clusters=taken, count=5))
        assert not shard_scans.advance(may_scan=True)
        clock.sleep(TIMEOUT_US)
        (lost,) = shard_scans.advance(may_scan=True)
        assert (lost.key, lost.lacking) == (0, HOT[:1]) and not both.shard.is_open
        both.device.may_scan.set()
        wait_until(lambda: not shard_scans._ended.empty())
        assert not shard_scans.advance(may_scan=True)
        shard_scans.close()
    waker.close()


def test_a_query_that_is_all_in_the_shard_scans_no_codes_and_reads_few_rows(
    index: SmallIndex,
) -> None:
    searches = questions(index, 50, 4)
    with with_shard(index, ALL, paged_share=0.3) as both:
        found = both.here.search(searches)
        assert not both.here.code_pages.seen, "codes were read"
    assert missed(index, searches, found) == 0
    rows = [result.rows_read for result in found.values() if result is not None]
    assert max(rows) <= 2 * searches[0].top_k


def test_clusters_that_do_not_fit_or_are_being_loaded_are_searched_by_codes(
    index: SmallIndex,
) -> None:
    searches = questions(index, 30, 5)
    with with_shard(index, ()) as both:
        both.device.load_error = ShardFullError("no room")
        both.shard._orders.put(Swaps(leave=(), enter=ALL))
        wait_until(lambda: both.here.count("shard_swaps_total", result="full") == NLIST)
        assert both.shard.is_open
        both.device.load_error = None
        both.device.may_load.clear()
        both.shard._orders.put(Swaps(leave=(), enter=HOT))
        found = both.here.search(searches)
        assert missed(index, searches, found) == 0 and not both.device.scanned
        both.device.may_load.set()
        both.wait_for(HOT)
        again = [search for search in questions(index, 60, 5) if search.key >= 30]
        both.here.search(again)
        in_shard = sum(cluster in HOT for search in again for cluster in search.clusters)
        assert both.here.count("shard_probes_total", side="shard") == in_shard
        assert sum(map(len, both.device.scanned)) >= in_shard


def test_a_cluster_that_leaves_stays_until_its_queries_are_scanned(index: SmallIndex) -> None:
    searches = questions(index, 20, 5)
    with with_shard(index) as both:
        both.device.may_scan.clear()
        both.here.executor.join(SearchGroup(searches=tuple(searches)))
        wait_until(lambda: bool(both.shard._pins))
        pinned = set(both.shard._pins)
        both.shard._orders.put(Swaps(leave=HOT, enter=()))
        wait_until(lambda: not both.shard.live & {HOT[0]})
        time.sleep(0.05)
        assert not pinned & set(both.device.dropped)
        both.device.may_scan.set()
        found = both.here.take(len(searches))
        assert missed(index, searches, found) == 0
        wait_until(lambda: set(both.device.dropped) == set(HOT))


@pytest.mark.parametrize("how", ["raises", "hangs", "raises at a load"])
def test_a_device_that_fails_loses_no_query(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    searches = questions(index, 60, 5)
    with with_shard(index) as both:
        both.here.search(searches[:20])
        if how == "raises":
            both.device.scan_error = RuntimeError("CUDA error: the device is lost")
        elif how == "raises at a load":
            both.device.load_error = RuntimeError("CUDA out of memory")
            both.shard._orders.put(Swaps(leave=(), enter=cluster_ids(1)))
            wait_until(lambda: not both.shard.is_open)
        else:
            monkeypatch.setattr(scans, "TIMEOUT_US", TIMEOUT_US)
            both.device.may_scan.clear()
        began_s = time.monotonic()
        found = both.here.search(searches[20:40])
        assert time.monotonic() - began_s < 10
        found |= both.here.search(searches[40:])
        both.device.may_scan.set()
        assert both.here.count("shard_failed") == 1 and not both.shard.live
    assert missed(index, searches[20:], found) == 0
    for result in found.values():
        assert result is not None and not result.skipped
        assert {probe.tier for probe in result.probes} <= {"ram", "ssd"}


def test_a_damaged_cluster_is_not_loaded(tmp_path: Path) -> None:
    index = make_index(tmp_path / "damaged")
    damaged = HOT[1]
    index.damage(damaged)
    others = tuple(cluster for cluster in HOT if cluster != damaged)
    with with_shard(index, ()) as both:
        both.shard._orders.put(Swaps(leave=(), enter=HOT))
        both.wait_for(others)
        assert both.here.count("shard_swaps_total", result="failed") == 1
