"""The commands of `carpool bench paper`: one for each paper. Light to import."""

from __future__ import annotations

import msgspec
import typer

from bench.core.command import command_of
from bench.papers.options import (
    CagrOptions,
    RagCacheOptions,
    SpeculationOptions,
    VectorLiteOptions,
)

paper = typer.Typer(
    name="paper",
    no_args_is_help=True,
    help="""A figure of a paper: what it states, its algorithm run again, ours, and an oracle.

Example:  carpool bench paper cagr hits --index my-index --data DATA
""",
)
PAPERS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "cagr": (CagrOptions, "bench.papers.cagr.figures"),
    "vectorlite": (VectorLiteOptions, "bench.papers.vectorlite.figures"),
    "ragcache": (RagCacheOptions, "bench.papers.ragcache.orders"),
    "hedrarag": (SpeculationOptions, "bench.papers.aquapipe.speculation"),
    "aquapipe": (SpeculationOptions, "bench.papers.aquapipe.speculation"),
}
"""The options of each paper's figures, and the module whose `run` makes them."""

for name, (options, module) in PAPERS.items():
    paper.command(name=name)(command_of(options, module))
