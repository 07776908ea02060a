"""The options of `carpool bench search`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.core.options import DataOption, JsonOption, NprobeOption
from schemas.query import TOP_K_MAX

MEMORY_SHARE = 0.4
IndexOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--index",
        metavar="DIR",
        help="The index to search. Give it once, or once for each seed: the same passages in "
        "another order, clustered from another seed.",
        show_default=False,
    ),
]
ContestantsOption = Annotated[
    str | None,
    typer.Option(
        "--contestants",
        metavar="NAME,NAME",
        help="Who takes part, such as carpool*,faiss-memory. Default: all that --list shows; with "
        "--cache those that can keep a cache budget.",
        show_default=False,
    ),
]
ListOption = Annotated[bool, typer.Option("--list", help="Print the contestants, and end.")]
WindowsOption = Annotated[
    str, typer.Option("--windows", metavar="N,N", help="Queries in a window: a block for each.")
]
QueriesOption = Annotated[int, typer.Option("--queries", min=1, help="Distinct questions.")]
TopKOption = Annotated[int, typer.Option("--top-k", min=1, max=TOP_K_MAX, help="Passages to find.")]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory",
        min=0.001,
        max=100,
        metavar="SHARE",
        help="Limit of a contestant's whole process, interpreter and page cache included, as a "
        "share of the bytes of the vectors. Python, NumPy and FAISS take about 60 MB. Default: "
        f"{MEMORY_SHARE}, without --cache.",
        show_default=False,
    ),
]
CacheOption = Annotated[
    float | None,
    typer.Option(
        "--cache",
        min=0.001,
        max=2,
        metavar="SHARE",
        help="Instead of --memory: limit of a contestant's cache, reads in flight included, as a "
        "share of the bytes of all clusters on disk. FAISS and LanceDB take no part.",
        show_default=False,
    ),
]
HeldByOption = Annotated[
    Literal["cgroup", "none"],
    typer.Option(
        help="cgroup: the kernel enforces --memory, and counts (needs root). none: nothing "
        "enforces it, and the report says so."
    ),
]
EmptyOption = Annotated[
    bool,
    typer.Option(
        help="Empty the whole machine's page cache before each cell (needs root); else only of "
        "the files of the run."
    ),
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", min=1, help="Runs, each with another order of arrival.")
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", min=0, help="Threads to compute with. 0: one a core.")
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--cell-timeout", min=1, metavar="S", help="A cell that takes longer is timed out."
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Contestant that ratios are to. Default: cagr-best-greedy, else faiss-ondisk.",
        show_default=False,
    ),
]
QuestionsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--questions",
        metavar="FILE.npy",
        help="Vectors of the questions, by the model of the index: once for all, or once for each "
        "--index. Questions that chose the spread of a grown set are never asked. Default: those "
        "of --data.",
        show_default=False,
    ),
]
WorkOption = Annotated[
    Path,
    typer.Option(
        "--work",
        metavar="DIR",
        help="Folder for logs, and for files that contestants make of an index once; on its disk.",
    ),
]


def search(
    index: IndexOption = None,
    contestants: ContestantsOption = None,
    list_them: ListOption = False,
    windows: WindowsOption = "20,100",
    queries: QueriesOption = 2000,
    nprobe: NprobeOption = 10,
    top_k: TopKOption = 10,
    memory: MemoryOption = None,
    cache: CacheOption = None,
    memory_held_by: HeldByOption = "cgroup",
    empty_page_cache: EmptyOption = True,
    seeds: SeedsOption = 3,
    threads: ThreadsOption = 0,
    cell_timeout_s: TimeoutOption = 1800.0,
    baseline: BaselineOption = None,
    data: DataOption = None,
    questions: QuestionsOption = None,
    work: WorkOption = Path(".carpool/bench/search"),
    json_file: JsonOption = None,
) -> None:
    """What does each way of searching cost?

    Runs every contestant alone in a process in a memory cgroup, from a cold start: page cache
    dropped, loading counted. The loop is closed: the next window of questions comes when the last
    one is answered. Bytes are the kernel's own count. A block of one seed and one window size runs
    all contestants in a random order; the disk is measured before, amid and after them.

    \b
    queries/s           from the first window's arrival to the last answer
    first s             from the start of the process to the first answer
    x                   against the baseline, paired by seed
    disk %, busy %      of what O_DIRECT reads of slices reach: over the whole loop, while reading
    x window, x static  bytes over those of reading each wanted cluster once a window, and of the
                        best fixed set kept

    With --cache every cache, and the best fixed set, has exactly the same bytes. After Ctrl-C the
    report has the cells that are done. Ends with 1 when a promise is broken: bytes or ids that
    disagree, a failure but for lack of memory or time, no result.

    Example:  carpool bench search --index my-index --memory 0.4 --windows 20,100 --seeds 3
    """
    from bench.baselines.registry import chosen_names
    from bench.retrieval import command, plan, report

    if list_them:
        report.list_contestants()
        return
    if not index:
        raise typer.BadParameter("name the index with --index; carpool index build makes one")
    chosen = chosen_names(contestants, with_cache_budget=cache is not None)
    asked = plan.SearchPlan(
        indexes=tuple(index),
        contestants=chosen,
        windows=command.parse_windows(windows),
        seeds=seeds,
        queries=queries,
        nprobe=nprobe,
        top_k=top_k,
        memory_share=MEMORY_SHARE if memory is None and cache is None else memory,
        cache_share=cache,
        limited_by=memory_held_by,
        threads=threads or len(os.sched_getaffinity(0)),
        timeout_s=cell_timeout_s,
        baseline=command.chosen_baseline(chosen, baseline),
        work=work,
        empty_page_cache=empty_page_cache,
    )
    if not command.search(asked, data=data, questions=questions or (), json_file=json_file):
        raise typer.Exit(1)
