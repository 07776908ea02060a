"""The options of `carpool bench embedding`, `grouping` and `shard`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from bench.core.options import (
    DataOption,
    JsonOption,
    NlistOption,
    NprobeOption,
    SeedOption,
    WindowOption,
    counts_of,
)
from carpool.embedding.settings import DEFAULT_MODEL


def embedding(
    data: DataOption = None,
    model: Annotated[str, typer.Option("--model", help="Its folder or name.")] = DEFAULT_MODEL,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Of NQ.")] = 100,
    passages: Annotated[int, typer.Option("--passages", min=10, help="Of the corpus.")] = 384,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each runtime.")] = 4,
    json_file: JsonOption = None,
) -> None:
    """What does a text cost in ONNX Runtime and in torch, and do they find the same?

    The runtimes take turns, each in a process of its own: CPU time of a question asked alone, of
    one of a window, and of a passage; memory. Ends with 1 when their vectors or the ten best
    passages of a question differ.

    Example:  carpool bench embedding --data DATA --json embedding.json
    """
    from bench.micro import embedding as bench

    options = bench.EmbeddingOptions(
        model=model, questions=questions, passages=passages, rounds=rounds
    )
    if not bench.run(data, options, json_file):
        raise typer.Exit(1)


def grouping(
    data: DataOption = None,
    nlist: NlistOption = 1000,
    nprobe: NprobeOption = 32,
    window: WindowOption = 100,
    windows: Annotated[
        int, typer.Option("--windows", min=1, help="Windows that are timed.")
    ] = 1000,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """What does planning a window cost, and what is its order worth?

    Times grouping and ordering of windows of real questions on one thread, as the grouper does it.
    Then replays all questions in every policy and order: what a searcher that goes query by query,
    and one that goes record by record, would read with a cache of a share of the clusters.
    docs/grouping.md says what the columns mean.

    Ends with 1 when more than one window in a hundred takes over 2 ms.

    Example:  carpool bench grouping --data DATA --json grouping.json
    """
    from bench.micro import grouping as bench

    options = bench.GroupingOptions(
        nlist=nlist,
        nprobe=min(nprobe, nlist),
        window_queries=window,
        windows=windows,
        seed=seed,
    )
    if not bench.run(data, options, json_file):
        raise typer.Exit(1)


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
