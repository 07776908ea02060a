"""The options of `carpool bench search`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.core.options import DataOption
from schemas.query import TOP_K_MAX

WORK = Path(".carpool/bench")
MEMORY_SHARE = 0.4


def search(
    index: Annotated[
        list[Path] | None,
        typer.Option(
            "--index",
            metavar="DIR",
            help="The index to search. Give it once, or once for each seed: the same passages in "
            "other orders, clustered from other seeds.",
            show_default=False,
        ),
    ] = None,
    contestants: Annotated[
        str | None,
        typer.Option(
            "--contestants",
            metavar="NAME,NAME",
            help="Who takes part, such as carpool*,faiss-memory. Default: all that --list shows; "
            "with --cache those that can be held to it.",
            show_default=False,
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="Say who can take part, and end.")
    ] = False,
    windows: Annotated[
        str,
        typer.Option(
            "--windows", metavar="N,N", help="Queries in a window: a block of cells for each."
        ),
    ] = "20,100",
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Distinct questions of the closed loop.")
    ] = 2000,
    nprobe: Annotated[
        int, typer.Option("--nprobe", min=1, help="Clusters that each question probes.")
    ] = 10,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, max=TOP_K_MAX, help="Passages to find.")
    ] = 10,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            min=0.001,
            max=100,
            metavar="SHARE",
            help="Limit of a contestant's whole process, interpreter and page cache included, as a "
            "share of the bytes of the vectors. Python, NumPy and FAISS take about 60 MB by "
            f"themselves. Default: {MEMORY_SHARE}, without --cache.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        float | None,
        typer.Option(
            "--cache",
            min=0.001,
            max=2,
            metavar="SHARE",
            help="Instead of --memory: what a contestant's cache may hold, reads under way "
            "included, as a share of the bytes of all clusters on disk. Processes are then watched "
            "and not limited. FAISS and LanceDB take no part.",
            show_default=False,
        ),
    ] = None,
    static_max: Annotated[
        float | None,
        typer.Option(
            "--static-max",
            min=0,
            metavar="X",
            help="A promise more: carpool reads at most X times what the best fixed set of "
            "clusters reads.",
            show_default=False,
        ),
    ] = None,
    memory_held_by: Annotated[
        Literal["cgroup", "none"],
        typer.Option(
            help="cgroup: the kernel holds the limit of --memory, and counts (needs root). none: "
            "nobody does, and the report says so."
        ),
    ] = "cgroup",
    empty_page_cache: Annotated[
        bool,
        typer.Option(
            help="Empty the whole machine's page cache before each cell (needs root); else only of "
            "the files of the run."
        ),
    ] = True,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Repetitions, each with another order of arrival.")
    ] = 3,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", min=0, help="Threads that a contestant may compute with. 0: one a core."
        ),
    ] = 0,
    open_loop: Annotated[
        bool,
        typer.Option(
            help="After the closed loop, seek the highest Poisson rate whose p99 stays within "
            "--p99-ms, of 500 questions or more at each (some minutes a cell)."
        ),
    ] = True,
    p99_ms: Annotated[
        float, typer.Option("--p99-ms", min=1, help="The latency that a rate must hold.")
    ] = 100.0,
    open_loop_s: Annotated[
        float, typer.Option("--open-loop-s", min=1, help="No new rate is tried after so long.")
    ] = 60.0,
    cell_timeout_s: Annotated[
        float,
        typer.Option(
            "--cell-timeout",
            min=1,
            metavar="S",
            help="A cell that takes longer is told as timed out.",
        ),
    ] = 1800.0,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="Contestant that ratios are to. Default: cagr-best-greedy, else faiss-ondisk.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    questions: Annotated[
        list[Path] | None,
        typer.Option(
            "--questions",
            metavar="FILE.npy",
            help="Vectors of the questions, by the model of the index: once for all, or once for "
            "each --index. Of a set that carpool bench data grew, those that it was fitted with "
            "are never asked. Default: those of --data.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for results: cells.jsonl, report.json, report.png, logs.",
        ),
    ] = WORK / "search",
    work: Annotated[
        Path,
        typer.Option(
            "--work",
            metavar="DIR",
            help="Folder for files that contestants make of an index, once; on its disk.",
        ),
    ] = WORK / "search-files",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the cells in --out that were made with the same settings."
        ),
    ] = False,
    plot: Annotated[bool, typer.Option(help="Also draw report.png (needs matplotlib).")] = False,
) -> None:
    """What does each way of searching cost, and what does ours?

    Runs every contestant alone in a process in a memory cgroup, from a cold start: page cache
    dropped, loading counted. First a closed loop (the next window of questions comes when the last
    one is answered), then Poisson arrivals at rising rates. Bytes are the kernel's own count.
    Blocks of one seed and one window size run all contestants in an order of their own, with the
    disk measured before, amid and after them, so that ratios compare neighbours.

    \b queries/s          from the first window's arrival to the last answer; with loading: see the
    JSON first s            from the start of the process to the first answer x
    against the baseline, paired by seed disk %, busy %     of what O_DIRECT reads of clusters or
    slices reach: over the whole loop, while reading spread %           of what they reach into as
    much memory as the cache has: over the whole loop held/s             the highest rate whose p99
    stayed within --p99-ms x window, x static bytes over those of reading each wanted cluster once a
    window, of the best fixed set kept

    With --cache every cache has exactly the same bytes, and so has the best fixed set: who chooses
    better what to keep? At a small share of an index the interpreter would take half of a limit on
    the whole process.

    Every cell is on disk when it is done: after Ctrl-C, --resume goes on. Running out of memory or
    time is a result. Ends with 1 when a promise is broken: bytes that disagree, an exact contestant
    with other ids, a contestant that failed otherwise, nothing measured, more bytes than
    --static-max.

    \b
    Examples:  carpool bench search --index my-index --memory 0.4 --windows 20,100 --seeds 3
               carpool bench search --index my-index --cache 0.1 --windows 20 --contestants
               'carpool*'
    """
    from rich.console import Console

    from bench.retrieval import command, measure, plan

    if list_them:
        command.list_contestants(Console())
        return
    if not index:
        raise typer.BadParameter(
            "name the index to search with --index DIR; carpool index build makes one"
        )
    chosen = command.parse_contestants(contestants, with_cache_budget=cache is not None)
    if contestants is None and (
        left_out := [name for name in command.parse_contestants(None) if name not in chosen]
    ):
        Console(stderr=True).print(
            f"left out, since --cache cannot hold them: {', '.join(left_out)}", soft_wrap=True
        )
    asked = plan.Plan(
        indexes=tuple(index),
        contestants=chosen,
        windows=command.parse_windows(windows),
        seeds=seeds,
        queries=queries,
        nprobe=nprobe,
        top_k=top_k,
        memory_share=MEMORY_SHARE if memory is None and cache is None else memory,
        cache_share=cache,
        held_by=memory_held_by,
        threads=threads or len(os.sched_getaffinity(0)),
        open_loop=measure.OpenLoopPlan(p99_max_ms=p99_ms, total_s=open_loop_s)
        if open_loop
        else None,
        timeout_s=cell_timeout_s,
        out=out,
        work=work,
        empty_page_cache=empty_page_cache,
    )
    wishes = command.Wishes(
        data=data,
        questions=tuple(questions or ()),
        baseline=baseline,
        resume=resume,
        plot=plot,
        static_max=static_max,
    )
    if not command.search(asked, wishes):
        raise typer.Exit(1)
