"""The options of `carpool bench data`. The docstring is the command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.core.options import DataOption, SeedOption


class GrowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Grow a large set out of the real passages, for benchmarks larger than the data.

    Judges whether the grown set behaves as the real one does: recall ceilings of the probes at
    nlist 100, and clusters that a window of 20 real questions touches. Writes the set only if it
    does; ends with 1 and the table if not. docs/data.md says how documents are made.

    Example:  carpool bench data --rows 1000000 --out grown-1m
    """

    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the set; it must not exist.")
    ]
    rows: Annotated[int, typer.Option("--rows", min=1, help="Documents to grow.")] = 1_000_000
    seed: SeedOption = 0
    data: DataOption = None
    sentences: Annotated[
        bool,
        typer.Option(
            help="Embed sentences of the passages and grow from those too; else from passages "
            "alone."
        ),
    ] = True
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Embedding model of the data, for the sentences. Default: the services'.",
            show_default=False,
        ),
    ] = None
    spread: Annotated[
        float | None,
        typer.Option(
            "--spread",
            min=0.01,
            max=100,
            help="How far documents go from their passages. Default: by the rows.",
            show_default=False,
        ),
    ] = None
    cache: Annotated[
        Path, typer.Option("--cache", metavar="DIR", help="Folder of embedded sentences.")
    ] = Path(".carpool/bench/grown")
