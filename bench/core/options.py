"""Options that several benchmarks share. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

WORK = Path(".carpool/bench")
"""Where indexes and logs are by default."""

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder of the evaluation data. Default: CARPOOL_DATA.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Where the figures go as JSON; - is standard output.",
        show_default=False,
    ),
]
WorkOption = Annotated[
    Path,
    typer.Option(
        "--work",
        metavar="DIR",
        help="Folder for index and logs, on a disk: the searcher reads with O_DIRECT.",
    ),
]
ServiceSettingOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="A setting of the services, such as grouper.policy=greedy; may be repeated.",
        show_default=False,
    ),
]
NlistOption = Annotated[int, typer.Option("--nlist", min=1, help="Clusters of the index.")]
NprobeOption = Annotated[int, typer.Option("--nprobe", min=1, help="Clusters a question probes.")]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=2**31 - 1,  # of FAISS
        help="Seed of the clusters and of the order of questions.",
    ),
]


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every benchmark of the services."""

    work: WorkOption = WORK
    settings: ServiceSettingOption = []
    json_file: JsonOption = None
