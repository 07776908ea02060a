"""The options of `carpool bench policies` and `simulator`. Light to import: the work is in
`bench.simulator.command`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import DataOption, JsonOption

NprobeOption = Annotated[int, typer.Option("--nprobe", min=1, help="Clusters a question probes.")]
WindowOption = Annotated[int, typer.Option("--window", min=1, max=1000, help="Questions a window.")]


def policies(
    data: DataOption = None,
    nlist: Annotated[
        int, typer.Option("--nlist", min=1, help="Clusters, trained on the passages.")
    ] = 1000,
    nprobe: NprobeOption = 10,
    window: WindowOption = 20,
    budgets: Annotated[
        str, typer.Option("--budgets", help="Shares of all clusters' bytes, with commas.")
    ] = "0.1,0.2",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Clusterings and orders of the questions.")
    ] = 3,
    json_file: JsonOption = None,
) -> None:
    """What is each cache policy worth, and what does knowing the next windows add?

    Replays real questions over clusters of real passages, on cluster ids: nothing is read. Bytes of
    each way of caching over those of the static oracle: the best fixed set of clusters, chosen
    knowing all questions, each read once.

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
            f"--budgets {budgets}: a budget is a share of all clusters' bytes, above 0 and at most "
            "1"
        )
    command.policies(
        data,
        nlist=nlist,
        nprobe=nprobe,
        window=window,
        shares=shares,
        seeds=seeds,
        json_file=json_file,
    )


def simulator(
    data: DataOption = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            metavar="DIR",
            help="Search this index. Default: one of the passages of the data, built under --work "
            "once.",
            show_default=False,
        ),
    ] = None,
    way: Annotated[
        list[str],
        typer.Option(
            "--way",
            help="carpool, edgerag, cagr-greedy, cagr-agglomerative, cagr-literal-greedy, "
            "cagr-best-greedy.",
        ),
    ] = ["carpool"],  # noqa: B006  (typer copies it)
    window: Annotated[
        list[int], typer.Option("--window", min=1, max=1000, help="Questions a window.")
    ] = [20, 100],  # noqa: B006
    nlist: Annotated[int, typer.Option("--nlist", min=1, help="Clusters, without --index.")] = 100,
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
        int,
        typer.Option(
            "--threads",
            min=0,
            help="Threads that score; 0: as many as cores, as the searcher does.",
        ),
    ] = 0,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Real runs; the median of them counts.")
    ] = 5,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the clusters and the order of the questions.")
    ] = 0,
    work: Annotated[
        Path,
        typer.Option(
            "--work",
            metavar="DIR",
            help="Folder for the index, on a disk: it is read with O_DIRECT.",
        ),
    ] = Path(".carpool/bench"),
    json_file: JsonOption = None,
) -> None:
    """Does the simulator agree with a real run of the same windows?

    Searches some windows of real questions to measure what things cost, then others, really (the
    searcher's own search plane, as it opens it) and on virtual time; once for each --way and
    --window. The next window comes when the last one is answered. Run it on a quiet machine: the
    simulator knows nothing of other processes. What was disturbed is said.

    Ends with 1 when bytes differ at all, or the mean, median or 99th percentile of the latencies by
    over 25 %.

    Example:  carpool bench simulator --data DATA --window 20 --window 100 --way carpool --way
    edgerag
    """
    from bench.simulator import command
    from bench.simulator.agreement import Question
    from bench.simulator.ways import WAYS
    from searcher.settings import SearcherSettings

    if unknown := sorted(set(way) - WAYS.keys()):
        raise typer.BadParameter(
            f"--way {unknown[0]}: there is no such way; choose from {', '.join(WAYS)}"
        )
    asked = [
        Question(
            way=WAYS[name],
            nprobe=nprobe,
            window=size,
            budget_share=budget_share,
            searcher=SearcherSettings(scoring_threads=threads),
            rounds=rounds,
        )
        for size in window
        for name in way
    ]
    for question in asked:
        if question.questions_min > questions:
            raise typer.BadParameter(
                f"--questions {questions} are too few for windows of {question.window}: a full "
                f"window must be left to measure costs. Ask for {question.questions_min} or more"
            )
    if not command.simulator(
        data,
        index_dir=index,
        asked=asked,
        nlist=nlist,
        questions=questions,
        seed=seed,
        work=work,
        json_file=json_file,
    ):
        raise typer.Exit(1)
