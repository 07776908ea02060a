"""Paged codes at shares of their bytes: what is read, against simulation and oracle, and the CPU.

A closed loop in this process, without a memory limit; the next four windows are known. One searcher
with all codes in memory is the baseline of the CPU time and of the ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
from schemas.group import lane_of
from schemas.record import ClusterId
from searcher.codes.open import ChosenCodes, open_codes_plane
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.local import SearchThread
from searcher.plan.paged_codes import PagedCodesPlanner, ReadCodes
from searcher.settings import SearcherSettings

TOP_K = 10
BYTES_TO_SIMULATED_MAX = 1.01
"""Scans that are repeated for more rows may read a cluster again; the simulation has none."""


class PagedCodesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched. `shares`: of the bytes of all codes that fit the memory of a searcher."""

    nprobe: int
    codec: str
    shares: tuple[float, ...] = (0.1, 0.2)
    windows: tuple[int, ...]
    queries: int
    searchers: tuple[int, ...] = (1,)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Queries in the order of arrival: `vectors` (n, dim) float32, `probes` (n, nprobe) int32."""

    vectors: Float32
    probes: Int32
    window: int


class PagedCodesRow(msgspec.Struct, frozen=True, kw_only=True):
    """One share and window. Bytes are those of codes, but for `rows_bytes`; all for one query.

    `share`: what each of `searchers` has. `other_ids`: in all results together, against one
    searcher with all codes in memory.
    """

    searchers: int
    share: float
    window: int
    read_bytes: float
    simulated_bytes: float
    static_oracle_bytes: float
    rows_bytes: float
    other_ids: int
    queries_per_s: float
    cpu_ms: float
    resident_queries_per_s: float
    resident_cpu_ms: float


class PagedCodesRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took. `ids`: the row numbers of each query, best first."""

    ids: list[tuple[int, ...]]
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
        asked = Asked(vectors=vectors, probes=probes, window=window)
        resident = search_together([ChosenCodes(codes=codes)], index, asked)
        rows += [
            _row(index, codes, asked, searchers, share, resident)
            for searchers in options.searchers
            for share in options.shares
        ]
    promises = {
        "bytes as simulated": all(
            row.read_bytes <= BYTES_TO_SIMULATED_MAX * row.simulated_bytes for row in rows
        ),
        "bytes within 1.15 of the static oracle": all(
            row.read_bytes <= 1.15 * row.static_oracle_bytes for row in rows
        ),
        "ids as of one searcher with all codes in memory": not any(row.other_ids for row in rows),
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
    codes: OpenCodes, asked: Asked, lane: int, lanes: int, budget_bytes: int
) -> Iterator[int]:
    """Yields the bytes of each read that the planner of a lane wants, in a closed loop."""
    planner = PagedCodesPlanner([extent.size_bytes for extent in codes.extents], budget_bytes)
    for start in range(0, len(asked.probes), asked.window):
        planner.expect(
            {
                cluster: windows
                for cluster, windows in _horizon(asked, start).items()
                if lane_of(cluster, lanes) == lane
            }
        )
        for key in range(start, min(len(asked.probes), start + asked.window)):
            clusters = map(ClusterId, asked.probes[key].tolist())
            planner.join(key, [each for each in clusters if lane_of(each, lanes) == lane])
        while steps := planner.plan():
            for step in steps:
                if isinstance(step, ReadCodes):
                    yield codes.extents[step.cluster].read_bytes


def _row(
    index: OpenIndex,
    codes: OpenCodes,
    asked: Asked,
    searchers: int,
    share: float,
    resident: PagedCodesRun,
) -> PagedCodesRow:
    sizes: Int64 = np.array([extent.read_bytes for extent in codes.extents], np.int64)
    budget_bytes = int(share * sum(extent.size_bytes for extent in codes.extents))
    chosen = ChosenCodes(codes=codes, paged_bytes=budget_bytes)
    found = search_together([chosen] * searchers, index, asked)
    count, window = len(asked.vectors), asked.window
    counts = window_counts(asked.probes, window, len(sizes))
    lanes = [np.arange(len(sizes)) % searchers == lane for lane in range(searchers)]
    static_bytes = sum(
        oracle_static(np.where(lane, counts, 0), sizes, budget_bytes).bytes_read for lane in lanes
    )
    return PagedCodesRow(
        searchers=searchers,
        share=share,
        window=window,
        read_bytes=found.codes_bytes / count,
        simulated_bytes=sum(
            sum(simulated_bytes(codes, asked, lane, searchers, budget_bytes))
            for lane in range(searchers)
        )
        / count,
        static_oracle_bytes=static_bytes / count,
        rows_bytes=found.rows_bytes / count,
        other_ids=sum(
            len(set(ids) ^ set(expected)) // 2
            for ids, expected in zip(found.ids, resident.ids, strict=True)
        ),
        queries_per_s=count / found.wall_s,
        cpu_ms=found.cpu_s / count * 1_000,
        resident_queries_per_s=count / resident.wall_s,
        resident_cpu_ms=resident.cpu_s / count * 1_000,
    )


def search_together(planes: Sequence[ChosenCodes], index: OpenIndex, asked: Asked) -> PagedCodesRun:
    """Searches windows with one searcher for each of `planes`, all in this process. Blocks.

    Several searchers share the clusters out, as services do with `grouper.scatter`.
    """
    metrics = Metrics()
    settings = SearcherSettings(direct_io="auto", read_timeout_ms=60_000)
    threads = [
        SearchThread(open_codes_plane(index, plane, settings, metrics, SystemClock()))
        for plane in planes
    ]
    ids: list[tuple[int, ...]] = []
    try:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        for start in range(0, len(asked.vectors), asked.window):
            ids += _search_window(threads, asked, start)
        codes_bytes, rows_bytes = (
            int(
                metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose})
                or 0
            )
            for purpose in ("codes", "demand")
        )
        return PagedCodesRun(
            ids=ids,
            codes_bytes=codes_bytes,
            rows_bytes=rows_bytes,
            wall_s=time.perf_counter() - began_s,
            cpu_s=time.process_time() - cpu_began_s,
        )
    finally:
        for thread in threads:
            thread.close()


def _search_window(
    threads: Sequence[SearchThread], asked: Asked, start: int
) -> list[tuple[int, ...]]:
    """Returns the row numbers of each query of a window."""
    lanes = len(threads)
    window = {
        key: tuple(map(ClusterId, asked.probes[key].tolist()))
        for key in range(start, min(len(asked.vectors), start + asked.window))
    }
    homes = {key: lane_of(clusters[0], lanes) for key, clusters in window.items()}
    scans = []
    for lane, thread in enumerate(threads):
        searches = [
            search
            for key, clusters in window.items()
            if (search := _of_lane(asked, key, clusters, lane, lanes)) is not None
        ]
        scans.append(sum(search.is_scan for search in searches))
        horizon = {
            cluster: windows
            for cluster, windows in _horizon(asked, start).items()
            if lane_of(cluster, lanes) == lane
        }
        thread.join(SearchGroup(searches=tuple(searches), window=start, horizon=horizon))
    found: dict[int, tuple[int, ...]] = {}
    for thread, count in zip(threads, scans, strict=True):
        while count:
            key, result = _take(thread)
            if result.scan is None:
                found[key] = tuple(result.best.rows.tolist())
                continue
            count -= 1
            scanned = [probe.cluster for probe in result.scan.probes]
            threads[homes[key]].plane.executor.found_elsewhere(key, scanned, result.scan)
    for lane, thread in enumerate(threads):
        for _ in [key for key in window if homes[key] == lane and key not in found]:
            key, result = _take(thread)
            found[key] = tuple(result.best.rows.tolist())
    return [found[key] for key in window]


def _of_lane(
    asked: Asked, key: int, clusters: tuple[ClusterId, ...], lane: int, lanes: int
) -> Search | None:
    """What a lane searches for a query; None: it has none of its clusters."""
    here = tuple(cluster for cluster in clusters if lane_of(cluster, lanes) == lane)
    if not here:
        return None
    is_home = lane_of(clusters[0], lanes) == lane
    return Search(
        key=key,
        vector=asked.vectors[key],
        clusters=clusters if is_home else here,
        top_k=TOP_K,
        elsewhere=tuple(each for each in clusters if each not in here) if is_home else (),
        is_scan=not is_home,
    )


def _take(thread: SearchThread) -> tuple[int, SearchResult]:
    search, result = thread.take()
    assert result is not None, "a search without a deadline expired"
    if result.errors:
        raise result.errors[0]
    return search.key, result


def _horizon(asked: Asked, start: int) -> dict[ClusterId, int]:
    """In how many windows each cluster is needed next."""
    horizon: dict[ClusterId, int] = {}
    for ahead in range(WINDOWS_AHEAD, 0, -1):
        first = start + ahead * asked.window
        later = asked.probes[first : first + asked.window]
        horizon |= dict.fromkeys(map(ClusterId, np.unique(later).tolist()), ahead)
    return horizon


def _print(console: Console, rows: list[PagedCodesRow]) -> None:
    table = Table(
        "searchers",
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
            str(row.searchers),
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
