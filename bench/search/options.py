"""The options of `carpool bench search`. The docstring is the help of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from typer import Option

from bench.core.options import JsonOption


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What does each way of searching cost for the same recall?

    Each contestant is asked at its own lowest setting that reaches each recall, in a process and a
    memory cgroup of its own: in windows of 100, alone, and by 16 clients that each wait for an
    answer. docs/reference/bench-rules.md describes the rules and the contestants. Those whose
    package is not installed are left out.

    Ends with 1 when a contestant fails but for lack of memory or time, or there is no result.
    """

    collection: Annotated[
        Path, Option(metavar="DIR", help="A folder that carpool bench data has written.")
    ]
    index: Annotated[
        Path | None, Option(metavar="DIR", help="Carpool's index of it; else one by the defaults.")
    ] = None
    contestants: Annotated[
        str | None,
        Option(
            metavar="NAME,NAME",
            help="Default: all but other modes of Carpool and its shards on a GPU.",
        ),
    ] = None
    recall: Annotated[
        list[float],
        Option(min=0, max=1, help="Recall that each contestant is to reach; may be repeated."),
    ] = msgspec.field(default_factory=lambda: [0.95, 0.98])
    memory: Annotated[
        float | None,
        Option(
            min=0.001,
            max=100,
            metavar="SHARE",
            help="Limit of a contestant's whole process, page cache included, as a share of the "
            "bytes of the vectors in float32. Default: no limit, the kernel only counts.",
        ),
    ] = None
    memory_held_by: Annotated[
        Literal["cgroup", "none"],
        Option(
            help="cgroup: the kernel enforces --memory, and counts (needs root). none: nothing "
            "enforces it, the page cache is not emptied, and the report says so."
        ),
    ] = "cgroup"
    work: Annotated[
        Path, Option(metavar="DIR", help="For logs, and what contestants build once.")
    ] = Path(".carpool/bench/search")
    json_file: JsonOption = None
