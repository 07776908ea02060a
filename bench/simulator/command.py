"""What `carpool bench simulator` does: real and simulated bytes, their table and report."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import structs
from rich.console import Console
from rich.table import Table

from bench.core.options import counts_of
from bench.core.run import begin
from bench.data.clusters import clusters_bytes, open_clusters
from bench.data.index import BenchIndex
from bench.data.oracles import static_oracle_bytes
from bench.search.questions import choose_questions, read_question_vectors
from bench.simulator.options import SimulatorOptions
from bench.simulator.search_plane import SearchedPlane, Windows
from carpool.disk.centroids import probe
from carpool.errors import ConfigError
from searcher.open_exact import ExactOptions
from searcher.settings import SearcherSettings

READ_TIMEOUT_MS = 30_000


class SimulatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of all queries, in windows of `window`. `oracle_bytes`: of the static oracle."""

    window: int
    real_bytes: int
    simulated_bytes: int
    oracle_bytes: int


def run(options: SimulatorOptions) -> bool:
    """Compares real runs with simulated ones; returns whether their bytes are equal. Blocks.

    Raises `ConfigError` for options that do not fit the index or the questions.
    """
    run = begin("simulator", options)
    index = open_clusters(options.index)
    nlist, dimension = index.centroids.shape
    if options.nprobe > nlist:
        raise ConfigError(
            f"--nprobe {options.nprobe} is more than the {nlist} clusters of {options.index}"
        )
    vectors, _ = choose_questions(
        read_question_vectors(options.questions), dimension, options.queries, options.seed
    )
    budget_bytes = int(options.budget_share * clusters_bytes(index))
    settings = structs.replace(
        SearcherSettings(direct_io="auto", read_timeout_ms=READ_TIMEOUT_MS),
        budget_bytes=budget_bytes,
    )
    plane = SearchedPlane(index=index, settings=settings, options=ExactOptions())
    sizes = np.array([extent.size_bytes for extent in index.extents], np.int64)
    rows = []
    for size in counts_of("--windows", options.windows):
        windows = Windows(
            vectors=vectors, probes=probe(index.centroids, vectors, options.nprobe), size=size
        )
        parts = [windows.probes[windows.members(number)] for number in range(windows.count)]
        rows.append(
            SimulatorRow(
                window=size,
                real_bytes=plane.real_bytes(windows),
                simulated_bytes=plane.simulated_bytes(windows),
                oracle_bytes=static_oracle_bytes(parts, sizes, budget_bytes),
            )
        )
    return run.finish(
        lambda console: _print(console, rows),
        promises={
            "the simulator reads the bytes of the real run": all(
                row.real_bytes == row.simulated_bytes for row in rows
            )
        },
        results=rows,
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )


def _print(console: Console, rows: list[SimulatorRow]) -> None:
    table = Table("window", "bytes read", "simulated", "equal", "x the static oracle")
    for row in rows:
        table.add_row(
            str(row.window),
            f"{row.real_bytes:,}",
            f"{row.simulated_bytes:,}",
            "yes" if row.real_bytes == row.simulated_bytes else "NO",
            f"{row.real_bytes / row.oracle_bytes:.3f}",
        )
    console.print(table)
