"""Does the simulator agree with the real thing? Costs measured over some windows, then other windows, real and simulated."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import numpy as np

from bench.data import Float32
from bench.figures import Spread, spread
from bench.simulator.arrivals import ClosedLoop
from bench.simulator.cluster_major import ClusterMajorSimulation
from bench.simulator.costs import ROW_COST, ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.outcome import Outcome
from bench.simulator.real import RealRun, Rig, Shelf, Stopwatch, measure_reads, rig_for, run_windows, write_shelf
from bench.simulator.trace import Clustered, Trace, trace_of
from searcher.cache.policies import PolicyName
from searcher.plan.cluster_major import ClusterMajorLimits

ROUNDS = 4


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The same windows twice. `within_25`: the share of queries whose own latencies differ by at most 25 %."""

    real_bytes: int
    simulated_bytes: int
    real_ms: Spread
    simulated_ms: Spread
    within_25: float
    disk: DiskCosts
    costs: ComputeCosts

    @property
    def latency_ratios(self) -> dict[str, float]:
        """Simulated over real."""
        names = ("mean", "p50", "p99")
        return {name: getattr(self.simulated_ms, name) / getattr(self.real_ms, name) for name in names}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared. Budgets are shares of all clusters' bytes, read-ahead and prefetch shares of the budget."""

    nprobe: int = 10
    window: int = 20
    budget_share: float = 0.2
    read_ahead_share: float = 0.1
    prefetch_share: float = 0.05
    windows_ahead: int = 4
    policy: PolicyName = "farthest_next_use"
    threads: int = 1
    calibration_share: float = 0.4
    direct_io: Literal["require", "auto"] = "require"


def compare(vectors: Float32, clustered: Clustered, questions: Float32, asked: Question, work: Path) -> Agreement:
    """Searches `questions` over `vectors`, (n, dim) float32 both, really and simulated. Segments go under `work`. Blocks."""
    calibrating = int(len(questions) * asked.calibration_share) // asked.window * asked.window
    with TemporaryDirectory(dir=work, prefix="agreement-") as folder:
        shelf = write_shelf(Path(folder), vectors, clustered)._replace(direct_io=asked.direct_io)
        rig = _rig(shelf, asked)
        warm_up = trace_of(clustered, questions[:calibrating], nprobe=asked.nprobe, window=asked.window)
        measured = _real(shelf, rig, warm_up, questions[:calibrating], asked)
        costs = measured_costs(measured)
        disk = _under_load(measure_reads(shelf, seed=0), measured, warm_up, rig, costs, asked.windows_ahead)
        trace = trace_of(clustered, questions[calibrating:], nprobe=asked.nprobe, window=asked.window)
        real = _real(shelf, rig, trace, questions[calibrating:], asked)
    simulated = simulate(trace, rig, disk, costs, windows_ahead=asked.windows_ahead)
    return agreement_of(real, simulated, disk, costs)


def _rig(shelf: Shelf, asked: Question) -> Rig:
    budget_bytes = int(asked.budget_share * shelf.size_bytes)
    limits = ClusterMajorLimits(
        budget_bytes=budget_bytes,
        read_ahead_bytes=int(asked.read_ahead_share * budget_bytes),
        prefetch_bytes=int(asked.prefetch_share * budget_bytes),
        overtake_us=60_000_000,  # a slow read that is passed over changes what is read
    )
    return rig_for(shelf, limits, asked.policy)


def _real(shelf: Shelf, rig: Rig, trace: Trace, questions: Float32, asked: Question) -> RealRun:
    return run_windows(shelf, rig, trace, questions, windows_ahead=asked.windows_ahead, threads=asked.threads)


def simulate(trace: Trace, rig: Rig, disk: DiskCosts, costs: ComputeCosts, *, windows_ahead: int) -> Outcome:
    """Runs a closed loop over `trace` on virtual time, from an empty cache."""
    return ClusterMajorSimulation(
        trace=trace,
        planner=rig.planner(),
        arrivals=ClosedLoop(trace, windows_ahead=windows_ahead, arrival_us=costs.arrival_us),
        disk=SimulatedDisk(disk),
        costs=costs,
    ).run()


def agreement_of(real: RealRun, simulated: Outcome, disk: DiskCosts, costs: ComputeCosts) -> Agreement:
    """Compares two runs of the same windows."""
    assert len(real.latency_us) == len(simulated.latency_us), "not the same windows"
    pairs = list(zip(real.latency_us, simulated.latency_us, strict=True))
    real_ms, simulated_ms = (spread(us / 1_000 for us in run.latency_us) for run in (real, simulated))
    assert real_ms is not None and simulated_ms is not None, "nothing was asked"
    return Agreement(
        real_bytes=real.bytes_read,
        simulated_bytes=simulated.bytes_read,
        real_ms=real_ms,
        simulated_ms=simulated_ms,
        within_25=sum(abs(sim_us - real_us) <= 0.25 * real_us for real_us, sim_us in pairs) / len(pairs),
        disk=disk,
        costs=costs,
    )


def measured_costs(run: RealRun) -> ComputeCosts:
    """Returns what computing took in a real run."""
    watch = run.watch
    work = np.array([sum(rows * (ROW_COST + queries) for rows, queries in tasks) / 1_000 for tasks in run.scored])
    clusters = np.array([len(tasks) for tasks in run.scored], dtype=np.float64)
    took_us = np.array([took for _, took in watch.taken["score"]])
    (work_ns, cluster_us), *_ = np.linalg.lstsq(np.stack([work, clusters], axis=1), took_us, rcond=None)
    if work_ns <= 0 or cluster_us < 0:
        work_ns, cluster_us = took_us.sum() / work.sum(), 0.0
    return ComputeCosts(
        work_ns=float(work_ns),
        cluster_us=float(cluster_us),
        turn_us=_turn_us(watch),
        join_us=_join_us(watch),
        read_us=watch.mean_us("begin_read"),
        event_us=watch.mean_us("ReadEnded"),
        answer_us=watch.mean_us("finish"),
        arrival_us=watch.mean_us("arrival"),
    )


def _under_load(
    disk: DiskCosts, measured: RealRun, trace: Trace, rig: Rig, costs: ComputeCosts, windows_ahead: int
) -> DiskCosts:
    """Returns `disk` with the overhead that reads have while the search thread computes, which costs them turns at the
    interpreter: raised until the simulated reads of the measured windows take as long as the real ones did, on average."""
    real_us = statistics.fmean(measured.read_us)
    for _ in range(ROUNDS):
        simulated_us = statistics.fmean(simulate(trace, rig, disk, costs, windows_ahead=windows_ahead).read_us)
        disk = msgspec.structs.replace(disk, overhead_us=max(1.0, disk.overhead_us + real_us - simulated_us))
    return disk


def _turn_us(watch: Stopwatch) -> float:
    """Of a turn of the executor with a sub-stage in it, what none of the other costs covers."""
    covered = ("score", "begin_read", "ReadEnded", "finish", "Joined")
    calls = sorted((began, took, name) for name in covered for began, took in watch.taken.get(name, ()))
    turns = [began for began, _ in watch.taken["next_substage"]]
    left_us, at = [], 0
    for began_us, ended_us in pairwise(turns):
        inside = []
        while at < len(calls) and calls[at][0] < ended_us:
            if calls[at][0] >= began_us:
                inside.append(calls[at])
            at += 1
        if any(name == "score" for _, _, name in inside):
            left_us.append(ended_us - began_us - sum(took for _, took, _ in inside))
    return max(0.0, statistics.fmean(left_us))


def _join_us(watch: Stopwatch) -> float:
    """From the arrival of a window to the first look for a sub-stage, less what was handed to the store meanwhile."""
    turns = np.array([began for began, _ in watch.taken["next_substage"]])
    reads = np.array(watch.taken["begin_read"])
    joins = []
    for (arrived_us, _), (joined_us, _) in zip(watch.taken["arrived"], watch.taken["Joined"], strict=True):
        ready_us = turns[np.searchsorted(turns, joined_us)]
        inside = (reads[:, 0] >= arrived_us) & (reads[:, 0] < ready_us)
        joins.append(float(ready_us - arrived_us - reads[inside, 1].sum()))
    return statistics.median(joins)
