"""The options of `carpool bench data`. The docstring is the command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Option

from bench.core.options import DataOption, SeedOption


class GrowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Grow a large set out of the real passages, for benchmarks larger than the data.

    Writes vectors, documents, and real questions that were not used to judge the set; grown.json
    says how the set was made. docs/data.md says how documents are made.

    Ends with 1 when the set does not behave as the real one: at nlist 100 and nprobe 10, the recall
    of other real questions differs by more than 0.02.
    """

    out: Annotated[Path, Option(metavar="DIR", help="Folder of the set; it must not exist.")]
    rows: Annotated[int, Option(min=1000, help="Documents to grow.")] = 1_000_000
    sentences: Annotated[
        bool,
        Option("--sentences", help="Grow nothing: embed at most --rows passages and sentences."),
    ] = False
    seed: SeedOption = 0
    data: DataOption = None
    spread: Annotated[
        float | None,
        Option(min=0.01, max=100, help="How far documents go from passages; else by the rows."),
    ] = None

    @property
    def json_file(self) -> Path:
        """Where the report goes."""
        return self.out / "grown.json"
