"""The options of `carpool bench hot-set`. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.core.command import command
from bench.core.options import JsonOption, NprobeOption, SeedOption


class HotSetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of hot-set."""

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
    shares: Annotated[
        str, typer.Option("--shares", help="Shares of the bytes of all clusters, with commas.")
    ] = "0.05,0.1,0.2,0.4"
    batches: Annotated[
        str, typer.Option("--batches", metavar="N,N", help="Questions in a batch.")
    ] = "1,8,32,64"
    threads: Annotated[
        str,
        typer.Option(
            "--threads",
            metavar="N,N",
            help="Threads of the machines for which bytes are chosen, in simulation: each thread "
            "is as fast as here. 0: as many as here.",
        ),
    ] = "0,16"
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=1, help="Times that every batch is measured; the median counts."
        ),
    ] = 40
    splits: Annotated[
        int,
        typer.Option(
            "--splits", min=1, help="Random splits of the questions, for which bytes are chosen."
        ),
    ] = 5
    seed: SeedOption = 0
    json_file: JsonOption = None


@command
def hot_set(options: HotSetOptions) -> bool:
    """Does the model of the hot set predict hit rates and times, and choose few bytes?

    Half of the questions are profiled, the others judge: they choose nothing.

    \b
    hit rates   the expected hit rate of the question with the fewest hits of a batch, against
                batches drawn from the other half; beside it Eq. 4 of VectorLiteRAG as printed, and
                the mean hit rate
    times       until the last question of a batch is scanned, the clusters of the hot set left out,
                against scans of the codes of the index; beside it Eq. 5 of the paper
    bytes       for five targets, the chosen hot set against the smallest one that meets the target
                with questions of the other half, in a simulation with the measured times

    Ends with 1 when a hit rate is off by more than .06, half of the times by more than 15 %, or hot
    sets take more than 1.15 times the least bytes or do not meet their targets: the median of some
    splits of the questions, and targets only for as many threads as here.

    Example:  carpool bench hot-set --index my-index --questions questions.npy
    """
    from bench.shard.hot_set import run

    return run(options)
