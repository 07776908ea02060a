"""Compares the simulator with real runs of the same windows.

Each round searches the windows that are predicted; before it, other windows measure the costs, and
the disk is measured by itself. So the predicted windows never measure the costs. A query's real
latency is its median over the rounds. Costs are of the middle run, and the disk is the median of
its measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from bench.core.spread import Spread, spread
from bench.data.evaluation import Float32
from bench.simulator.calibration import (
    DISK_S,
    measure_disk_costs,
    measured_costs,
    median_disk,
    simulate,
)
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts
from bench.simulator.plane import ComparedPlane, with_budget
from bench.simulator.real import RealRun, run_windows
from bench.simulator.simulation import SimulationOutcome
from carpool.disk.index import OpenIndex
from searcher.build import ExactOptions
from searcher.settings import SearcherSettings

OFF_MAX = 0.25
"""By how much latencies may differ, as a share of the real ones. Bytes may not differ at all."""
LATENCIES = ("mean", "p50", "p99")
CALIBRATION_SHARE = 0.4
"""Of the questions, these measure the costs."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared.

    `budget_share`: of all clusters' bytes. A part of the questions measures the costs, the others
    are searched in `rounds`.
    """

    nprobe: int = 10
    window: int = 20
    budget_share: float = 0.4
    searcher: SearcherSettings = SearcherSettings()
    options: ExactOptions = ExactOptions()
    rounds: int = 5
    disk_s: float = DISK_S

    @property
    def questions_min(self) -> int:
        """How many questions give each part a full window."""
        return math.ceil(self.window / CALIBRATION_SHARE) + 1


class SimulatorAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """The same windows, real and simulated.

    `real_bytes`: of each round; `real_ms`: of the queries' medians over the rounds. `ratios`:
    simulated over real latencies.
    """

    compared: Comparison
    real_bytes: tuple[int, ...]
    simulated_bytes: int
    real_ms: Spread
    simulated_ms: Spread
    ratios: dict[str, float]
    disk: DiskCosts
    costs: ComputeCosts

    @property
    def bytes_are_equal(self) -> bool:
        """Whether the simulation and every round read the same number of bytes."""
        return set(self.real_bytes) == {self.simulated_bytes}

    @property
    def latencies_agree(self) -> bool:
        """Whether mean, median and 99th percentile are within 25 %."""
        return all(map(is_close, self.ratios.values()))


def compare(
    index: OpenIndex,
    questions: Float32,
    compared: Comparison,
    tell: Callable[[str, int, int], None],
) -> SimulatorAgreement:
    """Searches `questions`, (n, dim) float32, over an index, really and simulated. Blocks."""
    count = int(len(questions) * CALIBRATION_SHARE) // compared.window * compared.window
    plane = ComparedPlane(
        index,
        with_budget(index, compared.searcher, compared.budget_share),
        compared.options,
    )
    warm_up, trace = (
        plane.trace(part, nprobe=compared.nprobe, window=compared.window)
        for part in (questions[:count], questions[count:])
    )
    assert warm_up.windows, f"{len(questions)} questions are too few"
    step = f"windows of {compared.window}: rounds"
    disks, calibrations, rounds = [], [], []
    for number in range(compared.rounds):
        tell(step, number, compared.rounds)
        disks.append(measure_disk_costs(plane, seed=number, duration_s=compared.disk_s))
        calibrations.append(run_windows(plane, warm_up, questions[:count]))
        rounds.append(run_windows(plane, trace, questions[count:]))
    disk = median_disk(disks)
    costs = measured_costs(plane, warm_up, middle(calibrations), disk)
    simulated = simulate(plane, trace, disk, costs)
    tell(step, compared.rounds, compared.rounds)
    return agreement_of(compared, rounds, simulated, disk, costs)


def middle(runs: Sequence[RealRun]) -> RealRun:
    """Returns the run of median speed, by the sum of its latencies."""
    return sorted(runs, key=lambda run: sum(run.latency_us))[(len(runs) - 1) // 2]


def agreement_of(
    compared: Comparison,
    runs: Sequence[RealRun],
    simulated: SimulationOutcome,
    disk: DiskCosts,
    costs: ComputeCosts,
) -> SimulatorAgreement:
    """Compares real runs of the same windows with a simulated one."""
    real_us = typical_us([run.latency_us for run in runs])
    real_ms, simulated_ms = _spread_ms(real_us), _spread_ms(simulated.latency_us)
    return SimulatorAgreement(
        compared=compared,
        real_bytes=tuple(run.bytes_read for run in runs),
        simulated_bytes=simulated.bytes_read,
        real_ms=real_ms,
        simulated_ms=simulated_ms,
        ratios={name: getattr(simulated_ms, name) / getattr(real_ms, name) for name in LATENCIES},
        disk=disk,
        costs=costs,
    )


def typical_us(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Returns the median latency of each query over `rounds` of the same queries."""
    return [statistics.median(latencies) for latencies in zip(*rounds, strict=True)]


def is_close(ratio: float) -> bool:
    """Whether simulated over real is within 25 %."""
    return abs(ratio - 1) <= OFF_MAX


def _spread_ms(latency_us: Sequence[float]) -> Spread:
    found = spread(us / 1_000 for us in latency_us)
    assert found is not None, "nothing was asked"
    return found
