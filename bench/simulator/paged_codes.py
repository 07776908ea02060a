"""Paged codes at shares of their bytes: what is read, against simulation and oracle, and the CPU.

A closed loop in this process, without a memory limit; the next four windows are known. All codes in
memory are the baseline of the CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.baselines.contestant import WINDOWS_AHEAD, Float32, Int32, Int64
from bench.core.report import RunStart, finish
from bench.data.clusters import open_clusters
from bench.data.index import BenchIndex
from bench.data.oracles import oracle_static, window_counts
from bench.retrieval.questions import read_question_vectors
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import OpenCodes, OpenIndex
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.codes.open import ChosenCodes, open_codes_plane
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.plan.paged_codes import PagedCodesPlanner, ReadCodes
from searcher.settings import SearcherSettings

TOP_K = 10
BYTES_TO_SIMULATED_MAX = 1.01
"""Scans that are repeated for more rows may read a cluster again; the simulation has none."""


class PagedCodesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched. `shares`: of the bytes of all codes that fit the memory."""

    nprobe: int
    codec: str
    shares: tuple[float, ...]
    windows: tuple[int, ...]
    queries: int


class PagedCodesRow(msgspec.Struct, frozen=True, kw_only=True):
    """One share and window. Bytes are those of codes, but for `rows_bytes`; all for one query."""

    share: float
    window: int
    read_bytes: float
    simulated_bytes: float
    static_oracle_bytes: float
    rows_bytes: float
    queries_per_s: float
    cpu_ms: float
    resident_queries_per_s: float
    resident_cpu_ms: float


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    codes_bytes: int
    rows_bytes: int
    wall_s: float
    cpu_s: float


def run(
    index_dir: Path, questions: Path, options: PagedCodesOptions, json_file: Path | None
) -> bool:
    """Searches, prints and reports. Blocks. Raises `ConfigError`."""
    start = RunStart.now()
    index = open_clusters(index_dir)
    if options.codec not in {layout.codec for layout in index.manifest.codes}:
        raise ConfigError(
            f"the index has no codes {options.codec}; it has "
            f"{', '.join(layout.codec for layout in index.manifest.codes) or 'none'}"
        )
    vectors = read_question_vectors([questions]).vectors[: options.queries]
    probes = probe(index.centroids, vectors, options.nprobe).astype(np.int32)
    codes = index.open_codes(options.codec)
    rows = []
    for window in options.windows:
        resident = _search(index, ChosenCodes(codes=codes), vectors, probes, window)
        for share in options.shares:
            rows.append(_row(index, codes, vectors, probes, window, share, resident))
    promises = {
        "bytes as simulated": all(
            row.read_bytes <= BYTES_TO_SIMULATED_MAX * row.simulated_bytes for row in rows
        ),
        "bytes within 1.15 of the static oracle": all(
            row.read_bytes <= 1.15 * row.static_oracle_bytes for row in rows
        ),
        "CPU within twice that of codes in memory": all(
            row.cpu_ms <= 2 * row.resident_cpu_ms for row in rows
        ),
    }
    report = start.report(
        "paged-codes",
        settings=options,
        promises=promises,
        results=rows,
        index=BenchIndex(dir=index_dir, manifest=index.manifest).facts,
    )
    return finish(report, json_file, lambda console: _print(console, rows))


def simulated_bytes(
    codes: OpenCodes, probes: Int32, window: int, budget_bytes: int
) -> Iterator[int]:
    """Yields the bytes of each read that the planner wants, in a closed loop of windows.

    `probes`: (queries, nprobe) int32, in the order of arrival.
    """
    planner = PagedCodesPlanner([extent.size_bytes for extent in codes.extents], budget_bytes)
    for start in range(0, len(probes), window):
        planner.expect(_horizon(probes, start, window))
        for key in range(start, min(len(probes), start + window)):
            planner.join(key, map(ClusterId, probes[key].tolist()))
        while steps := planner.plan():
            for step in steps:
                if isinstance(step, ReadCodes):
                    yield codes.extents[step.cluster].read_bytes


def _row(
    index: OpenIndex,
    codes: OpenCodes,
    vectors: Float32,
    probes: Int32,
    window: int,
    share: float,
    resident: _Measured,
) -> PagedCodesRow:
    sizes: Int64 = np.array([extent.read_bytes for extent in codes.extents], np.int64)
    budget_bytes = int(share * sum(extent.size_bytes for extent in codes.extents))
    chosen = ChosenCodes(codes=codes, paged_bytes=budget_bytes)
    found = _search(index, chosen, vectors, probes, window)
    counts = window_counts(probes, window, len(sizes))
    count = len(vectors)
    return PagedCodesRow(
        share=share,
        window=window,
        read_bytes=found.codes_bytes / count,
        simulated_bytes=sum(simulated_bytes(codes, probes, window, budget_bytes)) / count,
        static_oracle_bytes=oracle_static(counts, sizes, budget_bytes).bytes_read / count,
        rows_bytes=found.rows_bytes / count,
        queries_per_s=count / found.wall_s,
        cpu_ms=found.cpu_s / count * 1_000,
        resident_queries_per_s=count / resident.wall_s,
        resident_cpu_ms=resident.cpu_s / count * 1_000,
    )


def _search(
    index: OpenIndex, chosen: ChosenCodes, vectors: Float32, probes: Int32, window: int
) -> _Measured:
    metrics = Metrics()
    settings = SearcherSettings(direct_io="auto", read_timeout_ms=60_000)
    thread = SearchThread(open_codes_plane(index, chosen, settings, metrics, SystemClock()))
    try:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        for start in range(0, len(vectors), window):
            searches = tuple(
                Search(
                    key=key,
                    vector=vectors[key],
                    clusters=tuple(map(ClusterId, probes[key].tolist())),
                    top_k=TOP_K,
                )
                for key in range(start, min(len(vectors), start + window))
            )
            horizon = _horizon(probes, start, window)
            for result in thread.search(
                SearchGroup(searches=searches, window=start, horizon=horizon)
            ):
                if result.errors:
                    raise result.errors[0]
        codes_bytes, rows_bytes = (
            int(
                metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose})
                or 0
            )
            for purpose in ("codes", "demand")
        )
        return _Measured(
            codes_bytes=codes_bytes,
            rows_bytes=rows_bytes,
            wall_s=time.perf_counter() - began_s,
            cpu_s=time.process_time() - cpu_began_s,
        )
    finally:
        thread.close()


def _horizon(probes: Int32, start: int, window: int) -> dict[ClusterId, int]:
    """In how many windows each cluster is needed next."""
    horizon: dict[ClusterId, int] = {}
    for ahead in range(WINDOWS_AHEAD, 0, -1):
        later = probes[start + ahead * window : start + (ahead + 1) * window]
        horizon |= dict.fromkeys(map(ClusterId, np.unique(later).tolist()), ahead)
    return horizon


def _print(console: Console, rows: list[PagedCodesRow]) -> None:
    table = Table(
        "share of codes",
        "window",
        "MB of codes a query",
        "x simulated",
        "x static",
        "MB of rows",
        "queries a second",
        "CPU ms",
        "x CPU of resident",
    )
    for row in rows:
        table.add_row(
            f"{row.share:.0%}",
            str(row.window),
            f"{row.read_bytes / 1e6:.2f}",
            f"{row.read_bytes / row.simulated_bytes:.3f}",
            f"{row.read_bytes / row.static_oracle_bytes:.2f}",
            f"{row.rows_bytes / 1e6:.2f}",
            f"{row.queries_per_s:,.0f}",
            f"{row.cpu_ms:.2f}",
            f"{row.cpu_ms / row.resident_cpu_ms:.2f}",
        )
    console.print(table)
