"""The commands of `carpool bench paper`: one for each paper. Light to import."""

from __future__ import annotations

import typer

from bench.papers.aquapipe.cli import aquapipe
from bench.papers.cagr.cli import cagr
from bench.papers.ragcache.cli import ragcache

paper = typer.Typer(
    name="paper",
    no_args_is_help=True,
    help="""A figure of a paper: what it states, its algorithm run again, ours, and an oracle.

Example:  carpool bench paper cagr 6 --index my-index --data DATA
""",
)
for command in (aquapipe, cagr, ragcache):
    paper.command()(command)
paper.command(name="hedrarag")(aquapipe)
