"""The disk, the memory and the engine of the simulator: when does a read end?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.disk_calibration import BURSTS, Burst, fit_disk
from schemas.record import ClusterId
from tests.bench.simulated import COSTS, PAGE, A, B, C, D, memory


class Reads:
    """Memory whose clusters are of some pages each, and what it told."""

    def __init__(
        self, disk: DiskCosts, *pages: int, costs: ComputeCosts = COSTS, **shape: int
    ) -> None:
        sizes = {ClusterId(cluster): PAGE * count for cluster, count in enumerate(pages)}
        self.ended: list[tuple[float, ClusterId, bool]] = []
        self.memory = memory(sizes, disk, self._end, costs=costs, **shape)
        self._now_us = 0.0

    def until(self, now_us: float) -> list[tuple[float, ClusterId, bool]]:
        while (moment_us := self.memory.next_us()) is not None and moment_us <= now_us:
            self._now_us = moment_us
            self.memory.advance(moment_us, is_asleep=True)
        self._now_us = now_us
        self.memory.advance(now_us, is_asleep=True)
        return self.ended

    def _end(self, cluster: ClusterId, is_cancelled: bool) -> None:
        self.ended.append((self._now_us, cluster, is_cancelled))


# ---- the disk


def test_a_disk_that_serves_in_order_ends_reads_one_after_other_each_with_its_overhead() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=100, bytes_per_us=10))
    disk.give(1, 1000)
    disk.give(2, 500)
    assert disk.next_us() == 100, "the last byte of the first has come, and nobody has heard of it"
    disk.advance(199)
    assert disk.take_ended() == []
    disk.advance(200)
    assert disk.take_ended() == [1]
    disk.advance(250)
    assert disk.take_ended() == [2]
    assert disk.next_us() is None and disk.busy_us == 150


def test_reads_that_are_served_side_by_side_share_rate_and_the_next_one_waits_for_room() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, together_bytes=2000))
    for token in (1, 2, 3):
        disk.give(token, 1000)
    disk.advance(199)
    assert disk.take_ended() == []
    disk.advance(200)
    assert disk.take_ended() == [1, 2]
    disk.advance(300)
    assert disk.take_ended() == [3]


def test_a_read_that_joins_another_slows_it_down() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, together_bytes=10_000))
    disk.give(1, 1000)
    disk.advance(50)
    disk.give(2, 1000)  # 500 bytes of the first are left: both take 100 us for as many
    disk.advance(150)
    assert disk.take_ended() == [1]
    disk.advance(200)
    assert disk.take_ended() == [2]


@pytest.mark.parametrize("together_bytes", [1, 3 << 17, 1 << 20])
def test_the_fit_finds_the_disk_that_the_bursts_were_measured_on(together_bytes: int) -> None:
    costs = DiskCosts(overhead_us=150, bytes_per_us=1200, together_bytes=together_bytes)
    bursts = []
    for count in BURSTS:
        disk = SimulatedDisk(costs)
        for token in range(count):
            disk.give(token, 1 << 17)
        ended_us = []
        while (moment_us := disk.next_us()) is not None:
            disk.advance(moment_us)
            ended_us += [moment_us] * len(disk.take_ended())
        bursts.append(Burst(1 << 17, tuple(ended_us)))
    found = fit_disk(bursts)
    assert found.overhead_us == pytest.approx(150) and found.bytes_per_us == pytest.approx(1200)
    assert found.together_bytes >> 17 == together_bytes >> 17


# ---- memory and its engine


def test_a_cluster_is_there_when_its_last_block_is_verified() -> None:
    costs = structs.replace(COSTS, block_us=10, block_piece_us=1, verify_ns=1_000)  # 1 us a KiB
    reads = Reads(DiskCosts(overhead_us=100, bytes_per_us=4096), 256 + 2, costs=costs)
    reads.memory.begin_read(A, is_prefetch=False)
    # Blocks of 256 and 2 pages come at 356 and 358; the first is verified until 356 + 11 + 1024,
    # the second is taken up then.
    assert reads.until(1e6) == [(356 + 11 + 1024 + 11 + 8, A, False)]


def test_while_the_engine_verifies_it_hands_nothing_to_the_disk() -> None:
    costs = structs.replace(COSTS, block_us=1_000)
    reads = Reads(DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, costs=costs)
    reads.memory.begin_read(A, is_prefetch=False)
    reads.until(500)
    reads.memory.begin_read(B, is_prefetch=False)
    assert reads.until(1e6) == [(1010, A, False), (2020, B, False)]


def test_while_search_thread_computes_engine_waits_for_interpreter_until_that_one_sleeps() -> None:
    reads = Reads(
        DiskCosts(overhead_us=0, bytes_per_us=4096),
        10,
        10,
        costs=structs.replace(COSTS, handover_us=100),
    )
    reads.memory.begin_read(A, is_prefetch=False)
    reads.memory.advance(99)
    reads.memory.advance(150)  # handed over at 100, there at 110, noticed at 210
    reads.memory.begin_read(B, is_prefetch=False)
    assert reads.ended == []
    reads.memory.advance(180)
    assert reads.until(1e6) == [(180, A, False), (190, B, False)], (
        "asleep from 180 on: both are seen to at once"
    )


def test_a_read_waits_for_a_place_with_the_kernel() -> None:
    reads = Reads(DiskCosts(overhead_us=100, bytes_per_us=4096), 10, 10, depth=1)
    reads.memory.begin_read(A, is_prefetch=False)
    reads.memory.begin_read(B, is_prefetch=False)
    assert reads.until(1e6) == [(110, A, False), (220, B, False)]


def test_demands_go_before_prefetches_and_of_those_only_some_are_with_the_kernel() -> None:
    reads = Reads(
        DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, 10, 10, depth=2, prefetch_depth=1
    )
    for cluster in (A, B):
        reads.memory.begin_read(cluster, is_prefetch=True)
    reads.until(0)  # A begins, B may not
    reads.memory.begin_read(C, is_prefetch=False)
    reads.memory.begin_read(D, is_prefetch=False)
    assert [cluster for _, cluster, _ in reads.until(1e6)] == [A, C, D, B]


def test_a_promoted_prefetch_is_a_demand_and_a_cancelled_one_ends_unless_kernel_has_it() -> None:
    reads = Reads(DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, 10, 10, depth=1)
    reads.memory.begin_read(A, is_prefetch=True)
    reads.until(0)
    reads.memory.begin_read(B, is_prefetch=True)
    reads.memory.begin_read(C, is_prefetch=False)
    reads.memory.promote(B)
    reads.memory.begin_read(D, is_prefetch=True)
    reads.memory.cancel(D)
    reads.memory.cancel(A)  # too late
    assert reads.until(1e6) == [(0.0, D, True), (10, A, False), (20, C, False), (30, B, False)]
    assert reads.memory.bytes_read == 30 * PAGE


@given(
    pages=st.lists(st.integers(1, 600), min_size=1, max_size=8),
    depth=st.integers(1, 5),
    prefetch_depth=st.integers(1, 5),
    together_bytes=st.sampled_from([1, 1 << 20, 4 << 20]),
    pauses_us=st.lists(st.integers(0, 200), min_size=8, max_size=8),
)
def test_every_read_ends_and_never_sooner_than_the_disk_allows(
    pages: list[int], depth: int, prefetch_depth: int, together_bytes: int, pauses_us: list[int]
) -> None:
    disk = DiskCosts(overhead_us=7, bytes_per_us=4096, together_bytes=together_bytes)
    reads = Reads(disk, *pages, depth=depth, prefetch_depth=prefetch_depth)
    now_us = 0.0
    for cluster, pause_us in zip(range(len(pages)), pauses_us, strict=False):
        reads.memory.begin_read(ClusterId(cluster), is_prefetch=bool(cluster % 2))
        now_us += pause_us
        reads.until(now_us)
    ended = reads.until(1e9)
    assert sorted((cluster, is_cancelled) for _, cluster, is_cancelled in ended) == [
        (cluster, False) for cluster in range(len(pages))
    ]
    assert reads.memory.disk_busy_us == pytest.approx(sum(pages))
    assert max(end_us for end_us, *_ in ended) >= sum(pages) + 7 - 1e-6
