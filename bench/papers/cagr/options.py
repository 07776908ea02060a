"""The options of `carpool bench paper cagr`. The docstring is the help of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.core.options import DataOption, JsonOption, SeedOption


class CagrOptions(msgspec.Struct, frozen=True, kw_only=True):
    """CaGR-RAG: query grouping. Its figures, with its settings, beside Carpool.

    Real questions as text, embedded one by one, in batches of a random size from 20 to 100, nlist
    100, nprobe 10, a cache of 40 clusters (Figure 2: 50, nprobe 10 to 40), theta 0.5, after a
    minute of warm-up. A run of one method takes about two minutes. docs/figures/ says what was
    found, and what differs from the paper.

    \b
    1  overlap of the clusters of questions      5  bytes, hits and latency
    2  latency by nprobe                         6  latency of three datasets
    4  hits in the cache                         7  grouping and prefetching by theta

    \b
    query   the paper's clock: from encoding a query to its top-k, without waiting for others
    batch   the asker's clock: from the arrival of the batch to the top-k
    oracle  the best fixed set of clusters in the same memory; others are read once a batch

    Ends with 1 when the kernel's count of bytes differs from ours.

    Example:  carpool bench paper cagr 6 --index my-index --data DATA
    """

    figure: Annotated[int, typer.Argument(metavar="1|2|4|5|6|7", show_default=False)]
    index: Annotated[
        Path, typer.Option("--index", metavar="DIR", help="The index: nlist 100, above memory.")
    ]
    data: DataOption = None
    model: Annotated[
        str | None,
        typer.Option("--model", help="Embedding model. Default: the index's.", show_default=False),
    ] = None
    queries: Annotated[
        int, typer.Option("--queries", min=3, help="Questions of each run, at most.")
    ] = 400
    warm_up_s: Annotated[
        float, typer.Option("--warm-up", min=0, metavar="S", help="Other questions, before.")
    ] = 60.0
    seed: SeedOption = 0
    json_file: JsonOption = None
