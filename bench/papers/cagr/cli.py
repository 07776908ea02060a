"""The options of `carpool bench figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import DataOption, SeedOption

QUERIES = {2: 250}
QUERIES_ELSE = 400

QueriesOption = Annotated[
    int | None,
    typer.Option(
        "--queries",
        min=3,
        help="Questions measured in each run, at most. Default: 400, Figure 2: 250.",
        show_default=False,
    ),
]


def figure(
    number: Annotated[int | None, typer.Argument(metavar="1|2|4|5|6|7", show_default=False)] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            metavar="DIR",
            help="The index: nlist 100, larger than memory.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Embedding model of the index. Default: the services'.",
            show_default=False,
        ),
    ] = None,
    queries: QueriesOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder for figures and runs: JSON and PNG."),
    ] = Path("bench-results/figures"),
) -> None:
    """A figure of CaGR-RAG, measured here: the paper's algorithms by its settings and clock.

    Real questions as text, embedded one by one, in batches of a random size from 20 to 100, nlist
    100, nprobe 10, a cache of 40 clusters (Figure 2: 50, nprobe 10 to 40), theta 0.5, after a
    minute of warm-up. Carpool is measured beside them.

    \b
    1  overlap of the clusters of questions      5  bytes, hits and latency of queries 250 to 300
    2  latency by nprobe; hits and latency       6  latency of three datasets
    4  hits of queries 100 to 200                7  grouping and prefetching by theta

    \b
    query   the paper's clock: from encoding a query to its top-k, without waiting for others
    batch   the asker's clock: from the arrival of the batch to the top-k

    Each run takes about two minutes, and figures share runs (4, 5 and 6 all, 7 some): a run that is
    in --out is not made again. Ends with 1 when the kernel's count of bytes differs from ours.
    docs/figures/ says what differs from the paper.

    Example:  carpool bench figure 6 --index my-index --data DATA
    """
    from bench.papers.cagr import command
    from bench.papers.cagr.plan import NUMBERS, FigureLoad

    if number not in NUMBERS:
        raise typer.BadParameter("which figure? Name 1, 2, 4, 5, 6 or 7")
    if index is None:
        raise typer.BadParameter(
            "name the index to search with --index DIR; carpool index build makes one"
        )
    load = FigureLoad(queries=queries or QUERIES.get(number, QUERIES_ELSE), seed=seed)
    options = command.FigureOptions(figure=number, index=index, model=model, out=out, load=load)
    if not command.figure(data, options):
        raise typer.Exit(1)
