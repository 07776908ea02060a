"""The bytes that each cache policy reads, without and with a horizon: replays of cluster ids.

The model: a window reads each cluster that it wants and that is not resident, once. Clusters come
into memory one after the other and may be evicted as soon as they were scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.baselines.eviction.policies import POLICY_NAMES, make_policy
from bench.core.report import RunStart, finish
from bench.core.spread import Range, over_runs
from bench.data.evaluation import find_data
from bench.data.oracles import oracle_static
from bench.data.trace import Trace, horizons, question_trace
from searcher.plan.eviction.farthest_next_use import FarthestNextUse
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId

HORIZONS: tuple[int | None, ...] = (0, 1, 2, 4, 8, None)
HALF_LIVES = (0, 10, 50, 200)
READ_OVERHEAD_US = 80.0
READ_BYTES_PER_US = 1000.0
"""The latency profile of `edgerag` and `gdsf`: an SSD that reads 1 GB/s."""


class PoliciesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed. `budget_shares`: of all clusters' bytes."""

    nlist: int
    nprobe: int
    window: int
    budget_shares: tuple[float, ...]
    seeds: int


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a way of caching reads over those of the static oracle; a range over seeds."""

    name: str
    budget_share: float
    to_static: Range


def run(data: Path | None, options: PoliciesOptions, json_file: Path | None) -> bool:
    """Replays, prints and reports. Raises `ConfigError` without data. Blocks for seconds."""
    start = RunStart.now()
    found = find_data(data)
    ratios: dict[tuple[str, float], list[float]] = {}
    for seed in range(options.seeds):
        trace = question_trace(
            found, nlist=options.nlist, nprobe=options.nprobe, window=options.window, seed=seed
        )
        for share in options.budget_shares:
            for name, ratio in study(trace, share):
                ratios.setdefault((name, share), []).append(ratio)
    rows = [
        PolicyRow(name=name, budget_share=share, to_static=spread)
        for (name, share), values in ratios.items()
        if (spread := over_runs(values)) is not None
    ]
    report = start.report("policies", settings=options, promises={}, results=rows)
    return finish(report, json_file, lambda console: _print(console, rows, options))


def static_oracle_bytes(trace: Trace, budget_bytes: int) -> int:
    """Returns what the best fixed set reads, chosen with the whole trace known."""
    windows = Counter(cluster for clusters in trace.wanted() for cluster in clusters)
    clusters = sorted(windows)
    counts = np.array([windows[cluster] for cluster in clusters], dtype=np.int64)
    sizes = np.array([trace.size_bytes[cluster] for cluster in clusters], dtype=np.int64)
    return oracle_static(counts, sizes, budget_bytes).bytes_read


def belady_bytes(trace: Trace, budget_bytes: int) -> int:
    """Returns the fewest bytes that any cache can read: Belady's MIN over single bytes.

    Parts of clusters may be kept. Starts empty.
    """
    wanted = trace.wanted()
    resident: dict[SliceId, int] = {}
    read = 0
    for clusters, horizon in zip(wanted, horizons(wanted, None), strict=True):
        read += sum(trace.size_bytes[c] - resident.get(c, 0) for c in clusters)
        resident.update((c, trace.size_bytes[c]) for c in clusters)
        free_bytes, kept = budget_bytes, {}
        for cluster in sorted((c for c in resident if c in horizon), key=lambda c: (horizon[c], c)):
            kept[cluster] = min(free_bytes, resident[cluster])
            free_bytes -= kept[cluster]
        resident = kept
    return read


def replay(
    trace: Trace, policy: CachePolicy, *, resident_bytes_max: int, windows_ahead: int | None
) -> int:
    """Returns the bytes that a cache with `policy` reads for the whole trace. Starts empty."""
    wanted = trace.wanted()
    resident: set[SliceId] = set()
    used = read = 0
    for window, clusters, horizon in zip(
        trace.windows, wanted, horizons(wanted, windows_ahead), strict=True
    ):
        policy.set_horizon(horizon)
        for query in window:
            for cluster in query:
                policy.touch(cluster)
        for cluster in [c for c in clusters if c not in resident]:
            policy.insert(cluster)
            resident.add(cluster)
            used += trace.size_bytes[cluster]
            read += trace.size_bytes[cluster]
            while used > resident_bytes_max:
                victim = policy.victim(frozenset())
                assert victim is not None, "more bytes than clusters"
                policy.remove(victim)
                resident.remove(victim)
                used -= trace.size_bytes[victim]
    policy.check_integrity()
    assert policy.residents() == resident
    return read


def study(trace: Trace, budget_share: float) -> Iterator[tuple[str, float]]:
    """Yields each way of caching with its bytes over the static oracle's. Takes seconds."""
    budget = int(budget_share * trace.total_bytes)
    static = static_oracle_bytes(trace, budget)
    for name, read in _all_ways(trace, budget, static):
        yield name, read / static


def _all_ways(trace: Trace, budget: int, static: int) -> Iterable[tuple[str, int]]:
    yield "static oracle", static
    yield "belady, parts of clusters", belady_bytes(trace, budget)
    yield "nothing kept", replay(trace, FarthestNextUse(), resident_bytes_max=0, windows_ahead=0)
    latency_us = {
        c: int(READ_OVERHEAD_US + size / READ_BYTES_PER_US) for c, size in trace.size_bytes.items()
    }
    for name in POLICY_NAMES:
        if name != "farthest_next_use":
            policy = make_policy(
                name, size_bytes=trace.size_bytes, budget_bytes=budget, read_latency_us=latency_us
            )
            yield name, replay(trace, policy, resident_bytes_max=budget, windows_ahead=0)
    for ahead in HORIZONS:
        read = replay(trace, FarthestNextUse(), resident_bytes_max=budget, windows_ahead=ahead)
        yield f"farthest_next_use, H = {'infinite' if ahead is None else ahead}", read
    for half_life in HALF_LIVES:
        policy = FarthestNextUse(half_life)
        read = replay(trace, policy, resident_bytes_max=budget, windows_ahead=1)
        yield f"farthest_next_use, H = 1, half-life {half_life}", read


def _print(console: Console, rows: list[PolicyRow], options: PoliciesOptions) -> None:
    shares = options.budget_shares
    headings = (f"budget {share:.0%}" for share in shares)
    table = Table("bytes read, over the static oracle's", *headings)
    found = {(row.name, row.budget_share): row.to_static for row in rows}
    for name in dict.fromkeys(row.name for row in rows):
        cells = [found[name, share] for share in shares]
        table.add_row(name, *(f"{c.median:.3f} ({c.min:.3f}-{c.max:.3f})" for c in cells))
    console.print(table)
