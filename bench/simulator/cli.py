"""The options of `carpool bench simulator`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import (
    WORK,
    DataOption,
    JsonOption,
    NlistOption,
    NprobeOption,
    SeedOption,
    WorkOption,
)

IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index",
        metavar="DIR",
        help="Search this index. Default: one of the data, built under --work once.",
        show_default=False,
    ),
]


def simulator(
    data: DataOption = None,
    index: IndexOption = None,
    window: Annotated[
        list[int], typer.Option("--window", min=1, max=1000, help="Questions a window.")
    ] = [20, 100],  # noqa: B006  (typer copies it)
    nlist: NlistOption = 100,
    nprobe: NprobeOption = 10,
    questions: Annotated[
        int, typer.Option("--questions", min=40, help="Questions; 40 % of them measure costs.")
    ] = 3000,
    budget_share: Annotated[
        float,
        typer.Option(
            "--budget-share", min=0.01, max=2, help="Memory, as a share of all clusters' bytes."
        ),
    ] = 0.4,
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="Threads that score; 0: as many as cores.")
    ] = 0,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Real runs; the median of them counts.")
    ] = 5,
    seed: SeedOption = 0,
    work: WorkOption = WORK,
    json_file: JsonOption = None,
) -> None:
    """Does the simulator agree with a real run of the same windows?

    Searches some windows of real questions to measure costs, then others, both really (the
    searcher's own search plane) and on virtual time, once for each --window. The next window comes
    when the last one is answered. Run it on a quiet machine: the simulator knows nothing of other
    processes.

    Ends with 1 when bytes differ at all, or the mean, median or 99th percentile of the latencies by
    over 25 %.

    Example:  carpool bench simulator --data DATA --window 20 --window 100
    """
    from bench.simulator import command
    from bench.simulator.agreement import Comparison
    from searcher.settings import SearcherSettings

    compared = tuple(
        Comparison(
            nprobe=nprobe,
            window=size,
            budget_share=budget_share,
            searcher=SearcherSettings(scoring_threads=threads),
            rounds=rounds,
        )
        for size in window
    )
    for each in compared:
        if each.questions_min > questions:
            raise typer.BadParameter(
                f"--questions {questions} are too few for windows of {each.window}: a full window "
                f"must be left to measure costs. Ask for {each.questions_min} or more"
            )
    options = command.SimulatorOptions(
        compared=compared,
        index=index,
        nlist=nlist,
        questions=questions,
        seed=seed,
        work=work,
    )
    if not command.simulator(data, options, json_file):
        raise typer.Exit(1)
