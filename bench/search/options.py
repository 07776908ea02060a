"""The options of `carpool bench search`. The docstring is the help of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from bench.core.options import JsonOption, NprobeOption


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What does each way of searching find, cost and need?

    Runs every contestant alone in a process in a memory cgroup, from a cold start. The loop is
    closed: the next window of questions comes when the last one is answered. Bytes are the kernel's
    own count. A block of one seed and one window size runs all contestants in a random order.

    \b
    queries/s           from the first window's arrival to the last answer
    recall, at probes   share of the best of all rows, and of the probed clusters, that are found
    peak MB             of the whole process, page cache included, by the kernel

    docs/reference/bench-rules.md describes the contestants. Ends with 1 when a promise is broken:
    an exact search that misses, a failure but for lack of memory or time, no result.

    Example:  carpool bench search --index my-index --questions questions.npy --memory 0.4
    """

    index: Annotated[
        list[Path],
        typer.Option(
            "--index",
            metavar="DIR",
            help="The index to search. Give it once, or once for each seed: the same passages in "
            "another order, clustered from another seed.",
            show_default=False,
        ),
    ] = []
    contestants: Annotated[
        str | None,
        typer.Option(
            "--contestants",
            metavar="NAME,NAME",
            help="Who takes part, such as carpool*,faiss-memory. Default: all that need no GPU.",
            show_default=False,
        ),
    ] = None
    windows: Annotated[
        str, typer.Option("--windows", metavar="N,N", help="Queries in a window: a block for each.")
    ] = "20,100"
    queries: Annotated[int, typer.Option("--queries", min=1, help="Distinct questions.")] = 2000
    nprobe: NprobeOption = 10
    memory: Annotated[
        float,
        typer.Option(
            "--memory",
            min=0.001,
            max=100,
            metavar="SHARE",
            help="Limit of a contestant's whole process, interpreter and page cache included, as a "
            "share of the bytes of the vectors. Python, NumPy and FAISS take about 60 MB.",
        ),
    ] = 0.4
    memory_held_by: Annotated[
        Literal["cgroup", "none"],
        typer.Option(
            help="cgroup: the kernel enforces --memory, and counts (needs root). none: nothing "
            "enforces it, the page cache is not emptied, and the report says so."
        ),
    ] = "cgroup"
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Runs, each with another order of arrival.")
    ] = 3
    questions: Annotated[
        list[Path],
        typer.Option(
            "--questions",
            metavar="FILE.npy",
            help="Vectors of the questions, by the model of the index: once for all, or once for "
            "each --index.",
            show_default=False,
        ),
    ] = []
    work: Annotated[
        Path,
        typer.Option(
            "--work",
            metavar="DIR",
            help="Folder for logs, and for files that contestants make of an index once; on its "
            "disk.",
        ),
    ] = Path(".carpool/bench/search")
    json_file: JsonOption = None
