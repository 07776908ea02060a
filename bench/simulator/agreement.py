"""Does the simulator agree with the real thing? Costs measured over some windows, then other windows, real and simulated.

In this order: the disk alone, real windows that measure what computing costs, the disk; then, several times over, the real
windows that are predicted, and the disk. So nothing that is predicted is measured on what it predicts; and the disk, whose rate
others on the machine change by the minute, is that of the moments before and after. A query's real latency is the median of its
latencies: one moment in which the machine was busy with something else would be the 99th percentile of a single run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import msgspec

from bench.data import Float32
from bench.figures import Spread, spread
from bench.simulator.arrivals import ClosedLoop
from bench.simulator.calibration import measured_costs
from bench.simulator.cluster_major import ClusterMajorSimulation
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts
from bench.simulator.disk_calibration import REPEATS, fit_disk, measure_bursts
from bench.simulator.disturbance import OthersShare
from bench.simulator.outcome import Outcome
from bench.simulator.query_by_query import QueryByQuerySimulation
from bench.simulator.real import RealRun, run_windows
from bench.simulator.rig import Rig
from bench.simulator.shelf import Shelf
from bench.simulator.trace import Trace
from bench.simulator.ways import WAYS, Way
from schemas.record import ClusterId
from searcher.opening import READ_AHEAD_BYTES_MAX, READ_AHEAD_SHARE
from searcher.settings import SearcherSettings

LATENCY_OFF_MAX = 0.25


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared.

    `budget_share`: of all clusters' bytes; read-ahead and prefetch shares of the budget, at most what the searcher takes by
    default; `threads` score. `calibration_share` of the questions measure the costs, the others are searched `repeats` times.
    Each burst that measures the disk is repeated `burst_repeats` times.
    """

    way: Way = WAYS["carpool"]
    nprobe: int = 10
    window: int = 20
    budget_share: float = 0.4
    read_ahead_share: float = 1 / READ_AHEAD_SHARE
    prefetch_share: float = 1 / READ_AHEAD_SHARE
    slice_bytes_max: int = SearcherSettings().slice_bytes_max
    windows_ahead: int = 4
    threads: int = 2
    calibration_share: float = 0.4
    repeats: int = 3
    burst_repeats: int = REPEATS


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The same windows, really and simulated.

    `real_bytes`: of each run, `runs_ms`: its latencies; `real_ms`: of the medians of each query over the runs. `within_25`: the
    share of queries whose own latencies differ by at most 25 %. `disk`: what the simulation was told; `disks`: what was
    measured before the calibration, before the first run that is compared, and after each. `others`: what share of the CPUs
    other processes and the kernel took while the costs were measured, and in each run.
    """

    asked: Question
    real_bytes: tuple[int, ...]
    simulated_bytes: int
    runs_ms: tuple[Spread, ...]
    real_ms: Spread
    simulated_ms: Spread
    within_25: float
    disk: DiskCosts
    disks: tuple[DiskCosts, ...]
    costs: ComputeCosts
    others: tuple[float, ...]

    @property
    def latency_ratios(self) -> dict[str, float]:
        """Simulated over real."""
        names = ("mean", "p50", "p99")
        return {name: getattr(self.simulated_ms, name) / getattr(self.real_ms, name) for name in names}

    @property
    def bytes_are_equal(self) -> bool:
        """Whether the simulation and every real run read as many bytes."""
        return set(self.real_bytes) == {self.simulated_bytes}

    @property
    def agrees(self) -> bool:
        """Whether bytes are the same, and mean, median and 99th percentile within 25 %."""
        is_close = all(abs(ratio - 1) <= LATENCY_OFF_MAX for ratio in self.latency_ratios.values())
        return is_close and self.bytes_are_equal


def compare(shelf: Shelf, questions: Float32, asked: Question) -> Agreement:
    """Searches `questions`, (n, dim) float32, over the clusters of `shelf`, really and simulated. Blocks."""
    calibrating = int(len(questions) * asked.calibration_share) // asked.window * asked.window
    rig = rig_for(shelf, asked)
    bursts = [measure_bursts(shelf, seed=0, repeats=asked.burst_repeats)]
    warm_up, trace = (
        shelf.trace(part, nprobe=asked.nprobe, window=asked.window)
        for part in (questions[:calibrating], questions[calibrating:])
    )
    others: list[float] = []
    costs = measured_costs(_real(shelf, rig, warm_up, questions[:calibrating], asked, others))
    bursts.append(measure_bursts(shelf, seed=1, repeats=asked.burst_repeats))
    runs = []
    for repeat in range(asked.repeats):
        runs.append(_real(shelf, rig, trace, questions[calibrating:], asked, others))
        bursts.append(measure_bursts(shelf, seed=2 + repeat, repeats=asked.burst_repeats))
    disk = fit_disk([burst for measured in bursts[1:] for burst in measured])
    simulated = simulate(trace, rig, disk, costs, windows_ahead=asked.windows_ahead)
    return agreement_of(asked, runs, simulated, disk, tuple(map(fit_disk, bursts)), costs, tuple(others))


def rig_for(shelf: Shelf, asked: Question) -> Rig:
    """Returns what both runs are given: limits as the searcher sets them, sizes as the arena makes them."""
    slices = shelf.slices(asked.slice_bytes_max if asked.way.by_cluster else 0)
    shape = shelf.shape(slices, int(asked.budget_share * shelf.size_bytes))
    blocks = [-(-extent.size_bytes // shape.block_bytes) for extent in slices.extents]
    return Rig(
        way=asked.way,
        shape=shape,
        slices=slices,
        size_bytes={ClusterId(number): count * shape.block_bytes for number, count in enumerate(blocks)},
        read_ahead_bytes=min(int(asked.read_ahead_share * shape.budget_bytes), READ_AHEAD_BYTES_MAX),
        prefetch_bytes=min(int(asked.prefetch_share * shape.budget_bytes), READ_AHEAD_BYTES_MAX),
        read_latency_us=slices.shared(shelf.read_latency_us),
    )


def _real(shelf: Shelf, rig: Rig, trace: Trace, questions: Float32, asked: Question, others: list[float]) -> RealRun:
    with OthersShare() as cpu:
        run = run_windows(shelf, rig, trace, questions, windows_ahead=asked.windows_ahead, threads=asked.threads)
    others.append(cpu.share)
    return run


def simulate(trace: Trace, rig: Rig, disk: DiskCosts, costs: ComputeCosts, *, windows_ahead: int) -> Outcome:
    """Runs a closed loop over `trace` on virtual time, from an empty cache."""
    sliced = rig.sliced(trace)
    memory = partial(rig.memory, sliced, disk, costs)
    if not rig.way.by_cluster:
        return QueryByQuerySimulation(
            trace=sliced, groups=rig.way.groups, planner=rig.query_by_query(), memory=memory, costs=costs
        ).run()
    return ClusterMajorSimulation(
        trace=sliced,
        planner=rig.cluster_major(),
        arrivals=ClosedLoop(sliced, windows_ahead=windows_ahead, arrival_us=costs.arrival_us),
        memory=memory,
        costs=costs,
    ).run()


def agreement_of(
    asked: Question,
    runs: Sequence[RealRun],
    simulated: Outcome,
    disk: DiskCosts,
    disks: tuple[DiskCosts, ...],
    costs: ComputeCosts,
    others: tuple[float, ...],
) -> Agreement:
    """Compares real runs of the same windows with a simulated one."""
    real_us = [statistics.median(latencies) for latencies in zip(*(run.latency_us for run in runs), strict=True)]
    pairs = list(zip(real_us, simulated.latency_us, strict=True))
    return Agreement(
        asked=asked,
        real_bytes=tuple(run.bytes_read for run in runs),
        simulated_bytes=simulated.bytes_read,
        runs_ms=tuple(_spread_ms(run.latency_us) for run in runs),
        real_ms=_spread_ms(real_us),
        simulated_ms=_spread_ms(simulated.latency_us),
        within_25=sum(abs(sim_us - us) <= LATENCY_OFF_MAX * us for us, sim_us in pairs) / len(pairs),
        disk=disk,
        disks=disks,
        costs=costs,
        others=others,
    )


def _spread_ms(latency_us: Sequence[float]) -> Spread:
    found = spread(us / 1_000 for us in latency_us)
    assert found is not None, "nothing was asked"
    return found
