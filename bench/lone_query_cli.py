"""The options of `carpool bench lone`. Light to import: the work is in `bench.lone_query`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def lone(
    rows: Annotated[int, typer.Option("--rows", min=1, help="Vectors, made up; held twice in memory.")] = 1_000_000,
    dimension: Annotated[int, typer.Option("--dimension", min=1, help="Of a vector.")] = 384,
    nlist: Annotated[int, typer.Option("--nlist", min=1, help="Clusters.")] = 100,
    nprobe: Annotated[int, typer.Option("--nprobe", min=1, help="Clusters a query probes.")] = 10,
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=100, help="Results of a query.")] = 10,
    queries: Annotated[int, typer.Option("--queries", min=1, help="Queries that are timed.")] = 500,
    threads: Annotated[int, typer.Option("--threads", min=1, help="That score, ours and FAISS's.")] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of vectors, clusters and queries.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Where the figures go as JSON; - is standard output.", show_default=False
        ),
    ] = None,
) -> None:
    """What does a lone query cost whose clusters are in memory, beside the same FAISS call?

    One query at a time, with its vector and its clusters, no Kafka and no disk: the searcher's scoring on some threads,
    and an IVF-Flat of FAISS with as many, take turns on the same vectors. Needs twice the bytes of the vectors.

    Ends with 1 when the median takes over 1 ms longer, or a result differs by more than scores within 0.00001.

    Example:  carpool bench lone --json lone.json
    """
    import msgspec

    from bench import lone_query as bench

    report = bench.run(
        bench.LoneOptions(
            rows=rows,
            dimension=dimension,
            nlist=nlist,
            nprobe=min(nprobe, nlist),
            top_k=top_k,
            queries=queries,
            threads=threads,
            seed=seed,
        )
    )
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2)
    is_on_stdout = json_file is not None and str(json_file) == "-"
    for line in bench.lines(report):
        typer.echo(line, err=is_on_stdout)
    if is_on_stdout:
        typer.echo(encoded)
    elif json_file is not None:
        json_file.write_bytes(encoded)
    if report.over_p50 > 1 or report.different:
        raise typer.Exit(1)
