"""Does the simulator agree with the real thing? Costs measured over some windows, then other
windows, real and simulated.

Each round searches the windows that are predicted; before each of the first three, other windows
measure what computing costs. The disk alone is measured before and after each run, since others on
the machine change its rate by the minute. So nothing that is predicted is measured on what it
predicts. And no single disturbance decides: a query's real latency is its median over the rounds,
so that what slows another query each time is left out, and what slows the same one, such as an
empty cache, is not; costs are of the middle one of the three, the disk is the median of what was
measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from bench.core.spread import Spread, spread
from bench.data.evaluation import Float32
from bench.simulator.arrivals import ClosedLoop
from bench.simulator.calibration import measured_costs
from bench.simulator.cluster_major import ClusterMajorSimulation
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.disk_calibration import REPEATS, fit_disk, measure_bursts, median_bursts
from bench.simulator.disturbance import OthersShare
from bench.simulator.memory import OnEnd, SimulatedMemory
from bench.simulator.outcome import Outcome
from bench.simulator.query_by_query import QueryByQuerySimulation
from bench.simulator.real import RealRun, run_windows
from bench.simulator.rig import Rig, rig_for, sliced
from bench.simulator.trace import Trace
from bench.simulator.ways import WAYS, Way
from carpool.disk.index import OpenIndex
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.settings import SearcherSettings

OFF_MAX = 0.25
"""By how much latencies may differ: a share of the real ones. Bytes may not differ at all."""
OTHERS_MAX = 0.1
"""Share of the CPUs that others may take in a round before it counts as disturbed."""
CALIBRATIONS = 3
LATENCIES = ("mean", "p50", "p99")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared.

    `budget_share`: of all clusters' bytes; everything else that the searcher may use is as
    `searcher` says. The grouper knows `windows_ahead`. `calibration_share` of the questions measure
    the costs, the others are searched in `rounds`. Each burst that measures the disk is repeated
    `burst_repeats` times.
    """

    way: Way = WAYS["carpool"]
    nprobe: int = 10
    window: int = 20
    budget_share: float = 0.4
    searcher: SearcherSettings = SearcherSettings()
    windows_ahead: int = 4
    calibration_share: float = 0.4
    rounds: int = 5
    burst_repeats: int = REPEATS

    @property
    def questions_min(self) -> int:
        """So many questions give a window to each part."""
        return math.ceil(self.window / min(self.calibration_share, 1 - self.calibration_share)) + 1


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The same windows, really and simulated.

    `real_bytes`: of each round, `rounds_ms`: its latencies; `real_ms`: of the queries' own medians
    over the rounds. `within_25`: the share of queries whose own latencies differ by at most 25 %.
    `disk`: what the simulation was told; `disks`: what was measured before the first run and after
    each. `others`: what share of the CPUs other processes and the kernel took in each run, those
    that measured costs among them.
    """

    asked: Question
    real_bytes: tuple[int, ...]
    simulated_bytes: int
    rounds_ms: tuple[Spread, ...]
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
        return {
            name: getattr(self.simulated_ms, name) / getattr(self.real_ms, name)
            for name in LATENCIES
        }

    @property
    def bytes_are_equal(self) -> bool:
        """Whether the simulation and every round read as many bytes."""
        return set(self.real_bytes) == {self.simulated_bytes}

    @property
    def bytes_agree(self) -> bool:
        """Whether bytes are equal; where they depend on time, and so differ between rounds too,
        within 25 % of the median.
        """
        if not self.asked.way.reads_depend_on_time:
            return self.bytes_are_equal
        return is_close(self.simulated_bytes / statistics.median(self.real_bytes))

    @property
    def latencies_agree(self) -> bool:
        """Whether mean, median and 99th percentile are within 25 %."""
        return all(map(is_close, self.latency_ratios.values()))

    @property
    def disturbed(self) -> int:
        """How many of the runs, those that measured costs among them, others disturbed."""
        return sum(share > OTHERS_MAX for share in self.others)

    @property
    def disk_range(self) -> float:
        """The highest rate of the disk that was measured, over the lowest."""
        rates = [disk.bytes_per_us for disk in self.disks]
        return max(rates) / min(rates)

    @property
    def agrees(self) -> bool:
        """Whether bytes and latencies do."""
        return self.bytes_agree and self.latencies_agree


def compare(
    index: OpenIndex,
    questions: Float32,
    asked: Question,
    tell: Callable[[str], None] = lambda _: None,
) -> Agreement:
    """Searches `questions`, (n, dim) float32, over an index, really and simulated. Blocks; `tell`
    hears how far it is.
    """
    calibrating = int(len(questions) * asked.calibration_share) // asked.window * asked.window
    rig = rig_for(index, asked.way, asked.searcher, asked.budget_share)
    warm_up, trace = (
        rig.trace(part, nprobe=asked.nprobe, window=asked.window)
        for part in (questions[:calibrating], questions[calibrating:])
    )
    assert warm_up.windows and trace.windows, (
        f"{len(questions)} questions are too few for windows of {asked.window}"
    )
    others: list[float] = []
    bursts = [measure_bursts(rig, seed=0, repeats=asked.burst_repeats)]

    def run(windows: Trace, vectors: Float32) -> RealRun:
        with OthersShare() as cpu:
            done = run_windows(rig, windows, vectors, windows_ahead=asked.windows_ahead)
        others.append(cpu.share)
        bursts.append(measure_bursts(rig, seed=len(bursts), repeats=asked.burst_repeats))
        return done

    calibrations, rounds = [], []
    for number in range(asked.rounds):
        tell(f"round {number + 1} of {asked.rounds}")
        if number < CALIBRATIONS:
            calibrations.append(run(warm_up, questions[:calibrating]))
        rounds.append(run(trace, questions[calibrating:]))
    tell("simulating")
    disk, costs = fit_disk(median_bursts(bursts)), measured_costs(middle(calibrations))
    simulated = simulate(rig, trace, disk, costs, windows_ahead=asked.windows_ahead)
    return agreement_of(
        asked, rounds, simulated, disk, tuple(map(fit_disk, bursts)), costs, tuple(others)
    )


def middle(runs: Sequence[RealRun]) -> RealRun:
    """Returns the run that was neither fast nor slow, by the sum of its latencies."""
    return sorted(runs, key=lambda run: sum(run.latency_us))[(len(runs) - 1) // 2]


def simulate(
    rig: Rig, trace: Trace, disk: DiskCosts, costs: ComputeCosts, *, windows_ahead: int
) -> Outcome:
    """Runs a closed loop over `trace` on virtual time, from an empty cache."""
    with rig.open_unused() as parts:
        as_planned = sliced(trace, parts.slices)

        def memory(on_end: OnEnd) -> SimulatedMemory:
            return SimulatedMemory(
                shape=rig.shape(parts.plane),
                size_bytes=as_planned.size_bytes,
                disk=SimulatedDisk(disk),
                costs=costs,
                on_end=on_end,
            )

        if not isinstance(parts.planner, ClusterMajorPlanner):
            return QueryByQuerySimulation(
                trace=as_planned,
                groups=rig.way.groups,
                planner=parts.planner,
                memory=memory,
                costs=costs,
            ).run()
        return ClusterMajorSimulation(
            trace=as_planned,
            planner=parts.planner,
            arrivals=ClosedLoop(
                as_planned, windows_ahead=windows_ahead, arrival_us=costs.arrival_us
            ),
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
    real_us = typical_us([run.latency_us for run in runs])
    pairs = list(zip(real_us, simulated.latency_us, strict=True))
    return Agreement(
        asked=asked,
        real_bytes=tuple(run.bytes_read for run in runs),
        simulated_bytes=simulated.bytes_read,
        rounds_ms=tuple(_spread_ms(run.latency_us) for run in runs),
        real_ms=_spread_ms(real_us),
        simulated_ms=_spread_ms(simulated.latency_us),
        within_25=sum(is_close(simulated_us / us) for us, simulated_us in pairs) / len(pairs),
        disk=disk,
        disks=disks,
        costs=costs,
        others=others,
    )


def typical_us(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Returns the median latency of each query over `rounds`, which asked the same queries in the
    same order.
    """
    return [statistics.median(latencies) for latencies in zip(*rounds, strict=True)]


def is_close(ratio: float) -> bool:
    """Whether simulated over real keeps the promise of 25 %."""
    return abs(ratio - 1) <= OFF_MAX


def _spread_ms(latency_us: Sequence[float]) -> Spread:
    found = spread(us / 1_000 for us in latency_us)
    assert found is not None, "nothing was asked"
    return found
