"""The options of `carpool bench shard`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from bench.core.options import JsonOption, NprobeOption, counts_of


def shard(
    device: Annotated[
        Literal["ram", "gpu"], typer.Option("--device", help="Where the clusters are.")
    ] = "ram",
    numbers: Annotated[
        Literal["float16", "sq8", "both"],
        typer.Option("--numbers", help="How vectors are stored."),
    ] = "both",
    rows: Annotated[
        str, typer.Option("--rows", help="Rows of the shard, with commas.")
    ] = "100000,400000",
    batches: Annotated[
        str, typer.Option("--batches", help="Questions of a scan, with commas.")
    ] = "1,8,64",
    dimension: Annotated[int, typer.Option("--dimension", min=8, help="Of the vectors.")] = 384,
    nprobe: NprobeOption = 32,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, help="Of each measurement, at least.")
    ] = 2.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of clusters and questions.")] = 0,
    json_file: JsonOption = None,
) -> None:
    """How fast does the hot shard scan and load?

    Fills a device with made-up clusters, and times scans: of the clusters of the shard that each
    question of a batch probes, and of all clusters. Beside them stands what a copy moves within the
    same memory. Then clusters are dropped and loaded while others are scanned. The lines are the
    constants of the cost model. On a GPU it ends with 1 where 64 questions do not scan float16 at
    half of the memory's bandwidth, or where loads slow scans down.

    Example:  carpool bench shard --device gpu --rows 250000,1000000,5400000 --json shard-gpu.json
    """
    from bench.micro import shard as bench

    options = bench.ShardOptions(
        device=device,
        numbers=("float16", "sq8") if numbers == "both" else (numbers,),
        rows=counts_of("--rows", rows),
        batches=counts_of("--batches", batches),
        dimension=dimension,
        nprobe=nprobe,
        seconds=seconds,
        seed=seed,
    )
    if not bench.run(options, json_file):
        raise typer.Exit(1)
