"""The costs of the simulator, measured on the machine that is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from bench.data.trace import Trace
from bench.micro.disk import DiskRate, DiskRead, measure_disk
from bench.simulator.costs import ComputeCosts, SliceTask
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.plane import ComparedPlane
from bench.simulator.reads import SimulatedReads
from bench.simulator.real import RealRun
from bench.simulator.simulation import ClusterMajorSimulation, SimulationOutcome
from searcher.store.reads_in_flight import READ_BYTES_MAX

DEPTHS = (1, 2, 4, 8)
DISK_S = 0.2
TURN_US_MAX = 20_000.0
STEPS = 8
"""Halvings of the interval in which `turn_us` is: to 80 us."""


def measure_disk_costs(compared: ComparedPlane, *, seed: int, duration_s: float) -> DiskCosts:
    """Returns the costs of reading blocks as the searcher does. Blocks for a second."""
    index = compared.index
    page_bytes = index.layout.page_bytes
    block_bytes = READ_BYTES_MAX // page_bytes * page_bytes
    reads = [
        DiskRead(
            path=Path(index.segment_paths[extent.segment]),
            offset_bytes=extent.offset_bytes,
            size_bytes=min(extent.size_bytes, block_bytes),
        )
        for extent in index.extents
        if extent.size_bytes
    ]
    return disk_costs(measure_disk(reads, seed=seed, depths=DEPTHS, duration_s=duration_s))


def disk_costs(rates: Sequence[DiskRate]) -> DiskCosts:
    """Returns costs whose disk reaches the best of `rates`, and the rate of one read at a time.

    `rates[0]` is of depth 1. The reads of the best depth are in service together.
    """
    best = max(rates, key=lambda rate: rate.bytes_per_s)
    bytes_per_us = best.bytes_per_s / 1e6
    mean_bytes = best.bytes_read / max(1, best.reads)
    alone_us = rates[0].duration_us / max(1, rates[0].reads)
    return DiskCosts(
        overhead_us=max(1.0, alone_us - mean_bytes / bytes_per_us),
        bytes_per_us=bytes_per_us,
        together_bytes=int(mean_bytes * best.depth),
    )


def median_disk(measured: Sequence[DiskCosts]) -> DiskCosts:
    """Returns the median of each cost."""
    return DiskCosts(
        overhead_us=float(np.median([each.overhead_us for each in measured])),
        bytes_per_us=float(np.median([each.bytes_per_us for each in measured])),
        together_bytes=int(np.median([each.together_bytes for each in measured])),
    )


def simulate(
    compared: ComparedPlane, trace: Trace, disk: DiskCosts, costs: ComputeCosts
) -> SimulationOutcome:
    """Runs a closed loop over `trace`, in clusters, on virtual time, from an empty cache."""
    sliced, options = compared.sliced(trace), compared.options
    return ClusterMajorSimulation(
        trace=sliced,
        planner=compared.planner(),
        reads=SimulatedReads(
            sliced.size_bytes,
            SimulatedDisk(disk),
            in_flight_bytes=options.in_flight_bytes,
            ahead_max=options.ahead_max,
        ),
        costs=costs,
    ).run()


def measured_costs(
    compared: ComparedPlane, trace: Trace, run: RealRun, disk: DiskCosts
) -> ComputeCosts:
    """Returns costs with which a simulation of `trace` is like `run`, a real run of it.

    Scoring takes as long in total; `turn_us` is such that the mean latency is the same.
    """
    costs = ComputeCosts()
    predicted_us = costs.scoring_us(_tasks(compared.sliced(trace)))
    costs = structs.replace(costs, scoring_scale=run.scoring_us / max(predicted_us, 1.0))
    wanted_us = float(np.mean(run.latency_us))
    low, high = 0.0, TURN_US_MAX
    for _ in range(STEPS):
        costs = structs.replace(costs, turn_us=(low + high) / 2)
        found = simulate(compared, trace, disk, costs)
        if np.mean(found.latency_us) < wanted_us:
            low = costs.turn_us
        else:
            high = costs.turn_us
    return costs


def _tasks(sliced: Trace) -> list[SliceTask]:
    """Each slice that each window wants, with the number of queries that want it."""
    tasks = []
    for window in sliced.windows:
        wanted = Counter(number for slices in window for number in slices)
        tasks += [SliceTask(sliced.row_count[number], count) for number, count in wanted.items()]
    return tasks
