"""The options of `carpool bench simulator`. The docstring is the help of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.core.options import JsonOption, NprobeOption, SeedOption


class SimulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Do the searcher's plans read what the simulator says?

    Searches windows of questions exactly, with the searcher's own search plane, and again with its
    planner alone. The next window comes when the last one is answered, and the next four are known.
    Bytes stand beside those of the best fixed set of clusters.

    Ends with 1 when bytes differ at all.

    Example:  carpool bench simulator --index my-index --questions questions.npy
    """

    index: Annotated[Path, typer.Option("--index", metavar="DIR", help="The index to search.")]
    questions: Annotated[
        Path, typer.Option("--questions", metavar="FILE.npy", help="Vectors of the questions.")
    ]
    windows: Annotated[
        str, typer.Option("--windows", metavar="N,N", help="Questions in a window.")
    ] = "20,100"
    nprobe: NprobeOption = 10
    queries: Annotated[int, typer.Option("--queries", min=1, help="Distinct questions.")] = 2000
    budget_share: Annotated[
        float,
        typer.Option(
            "--budget-share", min=0.01, max=2, help="Memory, as a share of all clusters' bytes."
        ),
    ] = 0.4
    seed: SeedOption = 0
    json_file: JsonOption = None
