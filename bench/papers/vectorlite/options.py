"""The options of `carpool bench paper vectorlite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from bench.core.options import JsonOption, NprobeOption, SeedOption


class VectorLiteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """VectorLiteRAG: does the model of the hot set predict hit rates, times and bytes?

    Half of the questions are profiled, the others judge: they choose nothing.

    \b
    batches   the least hit rate of a batch of questions, and the time until the last one is
              scanned, the clusters of the hot set left out: of batches of the other half and scans
              of the codes of the index, by the model, and by Eq. 4 and 5 as printed
    bytes     for five targets: the chosen hot set, that of Eq. 3 to 10 as printed, and the oracle:
              the smallest one that meets the target with questions of the other half, in a
              simulation with the measured times

    Ends with 1 when a hit rate is off by more than .06, half of the times by more than 15 %, or hot
    sets take more than 1.15 times the least bytes, or do not meet their targets: the median of some
    splits of the questions.

    Example:  carpool bench paper vectorlite bytes --index my-index --questions questions.npy
    """

    figure: Annotated[Literal["batches", "bytes"], typer.Argument(show_default=False)] = "bytes"
    index: Annotated[Path, typer.Option("--index", metavar="DIR", help="An index with codes.")]
    questions: Annotated[
        Path,
        typer.Option(
            "--questions",
            metavar="FILE.npy",
            help="Vectors of real questions, by the model of the index. Those that chose the "
            "spread of a grown set are left out.",
        ),
    ]
    nprobe: NprobeOption = 24
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Times that every batch is measured.")
    ] = 40
    seed: SeedOption = 0
    json_file: JsonOption = None
