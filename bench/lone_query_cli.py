"""The options of `carpool bench lone`. Light to import: the work is in `bench.lone_query`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.options import JsonOption
from schemas.query import TOP_K_MAX


def lone(
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            metavar="DIR",
            help="Measure the searcher's executor on this index, all of it in memory. Default: "
            "made-up data, scoring alone.",
            show_default=False,
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            metavar="FILE.npy",
            help="Vectors of the questions, by the model of the index. Needed with --index.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Vectors, made up; held twice in memory.")
    ] = 1_000_000,
    dimension: Annotated[int, typer.Option("--dimension", min=1, help="Of a vector.")] = 384,
    nlist: Annotated[int, typer.Option("--nlist", min=1, help="Clusters.")] = 100,
    nprobe: Annotated[int, typer.Option("--nprobe", min=1, help="Clusters a query probes.")] = 10,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, max=TOP_K_MAX, help="Results of a query.")
    ] = 10,
    queries: Annotated[int, typer.Option("--queries", min=1, help="Queries that are timed.")] = 500,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="That score, ours and FAISS's.")
    ] = 2,
    rest: Annotated[
        str,
        typer.Option(
            "--rest",
            metavar="MS,MS",
            help="How long the machine rests after each call: a table for each.",
        ),
    ] = "0,10,50",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of vectors, clusters and queries.")
    ] = 0,
    json_file: JsonOption = None,
) -> None:
    """What does a lone query cost whose clusters are in memory, beside the same FAISS call?

    One query at a time, with its vector and its clusters, no Kafka and no disk. With --index it
    goes the searcher's way: to the search thread, scored on some threads, and back. An IVF-Flat of
    FAISS on as many threads, given the same clusters, takes turns with it. Needs twice the bytes of
    the vectors.

    After a call FAISS's threads go on spinning for some 10 ms, and threads that sleep are woken
    late; so every rest between calls has its own figures.

    Ends with 1 when median or p99 take over 1 ms longer after any rest, or a result differs by more
    than scores within 0.00001.

    Example:  carpool bench lone --index my-index --questions questions.npy --json lone.json
    """
    from bench import lone_query as bench
    from bench.lone_query_index import run_on_index
    from bench.report import write_report

    try:
        rests_ms = tuple(int(part) for part in rest.split(","))
    except ValueError:
        rests_ms = ()
    if not rests_ms or min(rests_ms) < 0:
        raise typer.BadParameter(f"--rest {rest}: give milliseconds, none below 0, such as 0,10,50")
    options = bench.LoneOptions(
        rows=rows,
        dimension=dimension,
        nlist=nlist,
        nprobe=nprobe if index is not None else min(nprobe, nlist),
        top_k=top_k,
        queries=queries,
        threads=threads,
        rests_ms=rests_ms,
        seed=seed,
    )
    if index is None:
        report = bench.run(options)
    elif questions is None:
        raise typer.BadParameter(
            "which questions? Give a .npy file of their vectors with --questions"
        )
    else:
        report = run_on_index(index, questions, options)
    is_on_stdout = json_file is not None and str(json_file) == "-"
    for line in bench.lines(report):
        typer.echo(line, err=is_on_stdout)
    if json_file is not None:
        write_report(report, json_file)
    if report.over_ms_max > 1 or report.different:
        raise typer.Exit(1)
