"""The options of `carpool bench data`, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.core.options import DataOption, SeedOption
from carpool.terminal import TerminalConsole

if TYPE_CHECKING:
    from bench.data.grown.behaviour import Acceptance


def data(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the set; it must not exist.")
    ],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Documents to grow.")] = 1_000_000,
    seed: SeedOption = 0,
    data: DataOption = None,
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
    cache: Annotated[
        Path, typer.Option("--cache", metavar="DIR", help="Folder of embedded sentences.")
    ] = Path(".carpool/bench/grown"),
) -> None:
    """Grow a large set out of the real passages, for benchmarks larger than the data.

    Searches for a spread at which the grown set behaves as the real one does: recall ceilings of
    the probes at nlist 100, and clusters that a window of 20 real questions touches. Writes the set
    only if it does; ends with 1 and the table if not. docs/data.md says how documents are made.

    Example:  carpool bench data --rows 1000000 --out grown-1m
    """
    from bench.core.progress import progress_bars
    from bench.data.evaluation import find_data
    from bench.data.grown.grow import GrowRequest, RefusedError, grow
    from carpool.embedding import EmbeddingSettings

    request = GrowRequest(
        out=out.resolve(),
        row_count=rows,
        seed=seed,
        cache=cache.resolve(),
        embedding=EmbeddingSettings(model=model) if model else EmbeddingSettings(),
        sentences=sentences,
        spread=spread,
    )
    console = TerminalConsole(stderr=True)
    try:
        with progress_bars(console) as tell:
            grown = grow(request, find_data(data), tell, console.print)
    except RefusedError as error:
        print_acceptance(TerminalConsole(), error.acceptance)
        console.print(f"refused: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    print_acceptance(TerminalConsole(), grown.acceptance)
    console.print(
        f"accepted: {out}, spread {grown.recipe.spread:.4f}", markup=False, soft_wrap=True
    )


def print_acceptance(console: Console, acceptance: Acceptance) -> None:
    """Prints real and grown side by side, and the differences that are allowed."""
    from bench.data.grown.behaviour import (
        CEILING_TOLERANCE,
        TOUCHED_TOLERANCE,
        WINDOW_NPROBE,
        WINDOW_QUERIES,
    )

    real, grown = acceptance.real, acceptance.grown
    table = Table(title=f"nlist {real.nlist}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("", "real", "grown", "difference", "allowed"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("rows", f"{real.row_count:,}", f"{grown.row_count:,}")
    for nprobe, before, after in zip(real.nprobes, real.ceilings, grown.ceilings, strict=True):
        cells = (f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}", f"{CEILING_TOLERANCE}")
        table.add_row(f"recall@10 at nprobe {nprobe}", *cells)
    table.add_row(
        f"clusters of {WINDOW_QUERIES} questions, nprobe {WINDOW_NPROBE}",
        f"{real.touched:.2f}",
        f"{grown.touched:.2f}",
        f"{acceptance.touched_difference:+.2f}",
        f"{TOUCHED_TOLERANCE:g}",
    )
    console.print(table)
