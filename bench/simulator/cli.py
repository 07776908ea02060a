"""The options of `carpool bench policies` and `simulator`. Light to import: the work is in `bench.simulator.command`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Folder of the evaluation data. Default: CARPOOL_DATA.", show_default=False
    ),
]
NprobeOption = Annotated[int, typer.Option("--nprobe", min=1, help="Clusters a question probes.")]
WindowOption = Annotated[int, typer.Option("--window", min=1, max=1000, help="Questions a window.")]
JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Where the figures go as JSON; - is standard output.", show_default=False
    ),
]


def policies(
    data: DataOption = None,
    nlist: Annotated[int, typer.Option("--nlist", min=1, help="Clusters, trained on the passages.")] = 1000,
    nprobe: NprobeOption = 10,
    window: WindowOption = 20,
    budgets: Annotated[str, typer.Option("--budgets", help="Shares of all clusters' bytes, with commas.")] = "0.1,0.2",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Clusterings and orders of the questions.")] = 3,
    json_file: JsonOption = None,
) -> None:
    """What is each cache policy worth, and what does knowing the next windows add?

    Replays real questions over clusters of real passages, on cluster ids: nothing is read. Bytes of each way of caching over
    those of the static oracle: the best fixed set of clusters, chosen knowing all questions, in memory from the start.

    Example:  carpool bench policies --data DATA --json policies.json
    """
    from bench.simulator import command

    try:
        shares = tuple(float(share) for share in budgets.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"--budgets {budgets}: name shares with commas between them, such as 0.1,0.2"
        ) from None
    if not all(0 < share <= 1 for share in shares):
        raise typer.BadParameter(
            f"--budgets {budgets}: a budget is a share of all clusters' bytes, above 0 and at most 1"
        )
    command.policies(data, nlist=nlist, nprobe=nprobe, window=window, shares=shares, seeds=seeds, json_file=json_file)


def simulator(
    data: DataOption = None,
    nlist: Annotated[int, typer.Option("--nlist", min=1, help="Clusters, trained on the passages.")] = 100,
    nprobe: NprobeOption = 10,
    window: WindowOption = 20,
    questions: Annotated[int, typer.Option("--questions", min=40, help="Questions, real and simulated.")] = 1500,
    budget_share: Annotated[
        float, typer.Option("--budget-share", min=0.01, max=2, help="Memory, as a share of all clusters' bytes.")
    ] = 0.2,
    policy: Annotated[
        Literal["edgerag", "farthest_next_use", "gdsf", "lfu", "lru", "tiny_lfu"],
        typer.Option("--policy", help="The cache policy."),
    ] = "farthest_next_use",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads that score.")] = 1,
    work: Annotated[
        Path, typer.Option("--work", metavar="DIR", help="Folder for segments, on a disk: they are read with O_DIRECT.")
    ] = Path(".carpool/bench/simulator"),
    json_file: JsonOption = None,
) -> None:
    """Does the simulator agree with a real run of the same windows?

    Searches some windows of real questions to measure what things cost, then others, really and on virtual time. Run it on an
    idle machine: the simulator knows nothing of other processes.

    Ends with 1 when bytes differ at all, or the mean, median or 99th percentile of the latencies by over 25 %.

    Example:  carpool bench simulator --data DATA --nlist 100
    """
    from bench.simulator import command

    if not command.simulator(
        data,
        nlist=nlist,
        nprobe=nprobe,
        window=window,
        questions=questions,
        budget_share=budget_share,
        policy=policy,
        threads=threads,
        work=work,
        json_file=json_file,
    ):
        raise typer.Exit(1)
