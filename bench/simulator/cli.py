"""The options of `carpool bench simulator` and `hot-set-drift`. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.core.command import command
from bench.core.options import (
    WORK,
    DataOption,
    JsonOption,
    NlistOption,
    NprobeOption,
    SeedOption,
    WorkOption,
    counts_of,
)


class SimulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of simulator."""

    data: DataOption = None
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            metavar="DIR",
            help="Search this index. Default: one of the data, built under --work once.",
            show_default=False,
        ),
    ] = None
    window: Annotated[
        list[int], typer.Option("--window", min=1, max=1000, help="Questions a window.")
    ] = msgspec.field(default_factory=lambda: [20, 100])
    nlist: NlistOption = 100
    nprobe: NprobeOption = 10
    questions: Annotated[
        int, typer.Option("--questions", min=40, help="Questions; 40 % of them measure costs.")
    ] = 3000
    budget_share: Annotated[
        float,
        typer.Option(
            "--budget-share", min=0.01, max=2, help="Memory, as a share of all clusters' bytes."
        ),
    ] = 0.4
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Real runs; the median of them counts.")
    ] = 5
    seed: SeedOption = 0
    work: WorkOption = WORK
    json_file: JsonOption = None


@command
def simulator(options: SimulatorOptions) -> bool:
    """Does the simulator agree with a real run of the same windows?

    Searches some windows of real questions to measure costs, then others, both really (the
    searcher's own search plane) and on virtual time, once for each --window. The next window comes
    when the last one is answered. Run it on a quiet machine: the simulator knows nothing of other
    processes.

    Ends with 1 when bytes differ at all, or the mean, median or 99th percentile of the latencies by
    over 25 %.

    Example:  carpool bench simulator --data DATA --window 20 --window 100
    """
    from bench.simulator.command import compare_with_simulator

    return compare_with_simulator(options)


def hot_set_drift(
    index: Annotated[Path, typer.Option("--index", metavar="DIR", help="An index with codes.")],
    data: DataOption = None,
    nprobe: NprobeOption = 24,
    windows: Annotated[
        str, typer.Option("--windows", metavar="N,N", help="Queries in a window.")
    ] = "20,100",
    json_file: JsonOption = None,
) -> None:
    """How soon does the hot shard follow when questions change, and what do swaps cost?

    Simulates a searcher with a shard on a GPU: HotpotQA questions, then Natural Questions. Costs of
    the CPU and the disk are measured first; those of the GPU are assumed, from its data sheet.

    Ends with 1 when Carpool's hit rate is not within 3 points of a fresh calibration after 20
    windows, p99 during swaps is over 1.2 times that without any, or clusters leave in 200 windows
    of the same questions.

    Example:  carpool bench hot-set-drift --index my-index --data DATA --json drift.json
    """
    from bench.data.evaluation import find_data
    from bench.simulator import hot_set_drift as bench

    options = bench.HotSetDriftOptions(
        nprobe=nprobe,
        windows=counts_of("--windows", windows),
    )
    if not bench.run(index, find_data(data), options, json_file):
        raise typer.Exit(1)
