"""The options of `carpool bench data`, and what it prints. Light to import: the work is in
`bench.data.grown.grow`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from bench.data.grown.behaviour import Acceptance


def data(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the set; it must not be there.")
    ],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Documents to grow.")] = 1_000_000,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the documents, the clusters and the order.")
    ] = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder of the real data. Default: CARPOOL_DATA.",
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        bool,
        typer.Option(
            help="Embed sentences of the passages and grow from those too; else from passages "
            "alone."
        ),
    ] = True,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Embedding model of the data, for the sentences. Default: the services'.",
            show_default=False,
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            "--spread",
            min=0.01,
            max=100,
            help="Try this spread only. Default: search for one.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=50, help="Spreads to try at most.")
    ] = 8,
    cache: Annotated[
        Path,
        typer.Option(
            "--cache", metavar="DIR", help="Where embedded sentences are kept between runs."
        ),
    ] = Path(".carpool/bench/grown"),
) -> None:
    """Grow a large set out of the real passages, for benchmarks larger than the data that there
    are.

    Searches for a spread at which the grown set behaves as the real one does: recall ceilings of
    the probes at nlist 100, and clusters that a window of 20 real questions touches. Writes the set
    only if it does; ends with 1 and the table if not. docs/data.md says how documents are made.

    Example:  carpool bench data --rows 1000000 --out grown-1m
    """
    from bench.core.progress import progress_bars
    from bench.data.evaluation import find_data
    from bench.data.grown.grow import GrowRequest, Refused, grow
    from carpool.embedding import EmbeddingSettings

    request = GrowRequest(
        out=out.resolve(),
        row_count=rows,
        seed=seed,
        cache=cache.resolve(),
        embedding=EmbeddingSettings(model=model) if model else EmbeddingSettings(),
        sentences=sentences,
        spread=spread,
        rounds_max=rounds,
    )
    console = Console(stderr=True, highlight=False)
    try:
        with progress_bars(console) as tell:
            grown = grow(request, find_data(data), tell, console.print)
    except Refused as error:
        print_acceptance(Console(), error.acceptance)
        console.print(f"refused: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    print_acceptance(Console(), grown.acceptance)
    if grown.fine is not None:
        print_acceptance(Console(), grown.fine, judged=False)
    console.print(
        f"accepted: {out}, spread {grown.recipe.spread:.4f}", markup=False, soft_wrap=True
    )


def print_acceptance(console: Console, acceptance: Acceptance, *, judged: bool = True) -> None:
    """Prints real and grown side by side; with `judged` also what is allowed."""
    from bench.data.grown.behaviour import (
        CEILING_TOLERANCE,
        TOUCHED_TOLERANCE,
        WINDOW_NPROBE,
        WINDOW_QUERIES,
    )

    real, grown = acceptance.real, acceptance.grown
    table = Table(title=f"nlist {real.nlist}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("", "real", "grown", "difference", *(("allowed",) if judged else ())):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("rows", f"{real.row_count:,}", f"{grown.row_count:,}")
    for nprobe, before, after in zip(real.nprobes, real.ceilings, grown.ceilings, strict=True):
        cells = (f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}", f"{CEILING_TOLERANCE}")
        table.add_row(f"recall@10 at nprobe {nprobe}", *cells[: 4 if judged else 3])
    figures = (
        (
            f"clusters of {WINDOW_QUERIES} questions, nprobe {WINDOW_NPROBE}",
            real.touched,
            grown.touched,
        ),
        (
            "largest over smallest cluster",
            real.evenness.largest_over_smallest,
            grown.evenness.largest_over_smallest,
        ),
        ("deviation of cluster sizes", real.evenness.variation, grown.evenness.variation),
        ("score of the nearest", real.best_score, grown.best_score),
        ("score of the tenth", real.last_score, grown.last_score),
    )
    for number, (name, before, after) in enumerate(figures):
        limit = f"{TOUCHED_TOLERANCE:g}" if number == 0 else ""
        cells = (f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}", limit)
        table.add_row(name, *cells[: 4 if judged else 3])
    console.print(table)
