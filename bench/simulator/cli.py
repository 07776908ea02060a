"""The options of `carpool bench simulator`. Light to import."""

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
