"""Traces, disks and memory for the tests of the simulator."""

from __future__ import annotations

from collections.abc import Mapping

from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.memory import OnEnd, Shape, SimulatedMemory
from schemas.record import ClusterId

A, B, C, D = (ClusterId(c) for c in range(4))
PAGE = 4096
COSTS = ComputeCosts(
    cluster_us=0,
    piece_us=0,
    row_ns=120,
    product_ns=10,
    turn_us=100,
    join_us=7,
    read_us=3,
    wake_us=2,
    handover_us=0,
    arrival_us=50,
    block_us=0,
    verify_ns=0,
    block_piece_us=0,
)


def memory(
    size_bytes: Mapping[ClusterId, int],
    disk: DiskCosts,
    on_end: OnEnd,
    *,
    budget_bytes: int = 1 << 24,
    costs: ComputeCosts = COSTS,
    depth: int = 16,
    prefetch_depth: int = 2,
) -> SimulatedMemory:
    shape = Shape(budget_bytes, PAGE, PAGE, depth, prefetch_depth)
    return SimulatedMemory(
        shape=shape, size_bytes=size_bytes, disk=SimulatedDisk(disk), costs=costs, on_end=on_end
    )
