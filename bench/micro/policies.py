"""What is each cache policy worth, and what does knowing the future add? A study on cluster ids:
nothing is read.

The model: a window reads each cluster that it wants and that is not resident, once. Clusters come
into memory one after the other and may go again as soon as they were scored. The memory that holds
residents is the budget less a share that is always set aside for reads in flight; the searcher
needs less, since nothing is in flight when a window ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from bench.data.oracles import oracle_static
from bench.simulator.trace import Trace, horizons
from schemas.record import ClusterId
from searcher.plan.eviction.farthest_next_use import FarthestNextUse
from searcher.plan.eviction.policies import POLICY_NAMES, make_policy
from searcher.plan.eviction.policy import CachePolicy

NOBODY: frozenset[ClusterId] = frozenset()
HORIZONS: tuple[int | None, ...] = (0, 1, 2, 4, 8, None)
SHARES_IN_FLIGHT = (0.05, 0.1, 0.2)
HALF_LIVES = (0, 10, 50, 200)
HORIZON = 4
READ_OVERHEAD_US = 80.0
READ_BYTES_PER_US = 1000.0
"""A profile for `edgerag` and `gdsf` where no index was profiled: an SSD that reads 1 GB/s."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one way of caching reads for a whole trace. `to_static`: over those of the static
    oracle.
    """

    name: str
    budget_share: float
    bytes_read: int
    to_static: float


def static_oracle_bytes(trace: Trace, budget_bytes: int) -> int:
    """Returns what the best fixed set reads, chosen knowing the whole trace:
    `bench.data.oracles.oracle_static`.
    """
    windows = Counter(cluster for clusters in trace.wanted() for cluster in clusters)
    clusters = sorted(windows)
    counts = np.array([windows[cluster] for cluster in clusters], dtype=np.int64)
    sizes = np.array([trace.size_bytes[cluster] for cluster in clusters], dtype=np.int64)
    return oracle_static(counts, sizes, budget_bytes).bytes_read


def belady_bytes(trace: Trace, budget_bytes: int) -> int:
    """Returns the fewest bytes that any cache can read: Belady's MIN over bytes, so that parts of
    clusters may stay.

    Each byte is a page of one unit, and MIN is optimal for those; only reads of whole clusters are
    dearer. Starts empty.
    """
    wanted = trace.wanted()
    held: dict[ClusterId, int] = {}
    read = 0
    for clusters, horizon in zip(wanted, horizons(wanted, None), strict=True):
        read += sum(trace.size_bytes[c] - held.get(c, 0) for c in clusters)
        held.update((c, trace.size_bytes[c]) for c in clusters)
        free_bytes, kept = budget_bytes, {}
        for cluster in sorted((c for c in held if c in horizon), key=lambda c: (horizon[c], c)):
            kept[cluster] = min(free_bytes, held[cluster])
            free_bytes -= kept[cluster]
        held = kept
    return read


def replay(
    trace: Trace, policy: CachePolicy, *, resident_bytes_max: int, windows_ahead: int | None
) -> int:
    """Returns the bytes that `policy` has read for the whole trace, from an empty cache; see the
    model above.
    """
    wanted = trace.wanted()
    resident: set[ClusterId] = set()
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
                victim = policy.victim(NOBODY)
                assert victim is not None, "more bytes than clusters"
                policy.remove(victim)
                resident.remove(victim)
                used -= trace.size_bytes[victim]
    policy.check_integrity()
    assert policy.residents() == resident
    return read


def study(trace: Trace, budget_share: float) -> Iterator[Row]:
    """Yields all rows of one trace and budget, oracles first. Seconds of computing."""
    budget = int(budget_share * trace.total_bytes)
    static = static_oracle_bytes(trace, budget)
    for name, read in _all_rows(trace, budget, static):
        yield Row(name=name, budget_share=budget_share, bytes_read=read, to_static=read / static)


def _all_rows(trace: Trace, budget: int, static: int) -> Iterable[tuple[str, int]]:
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
            yield (
                name + ", the popularity cache" * (name == "lfu"),
                replay(trace, policy, resident_bytes_max=budget, windows_ahead=0),
            )
    for ahead in HORIZONS:
        read = replay(trace, FarthestNextUse(), resident_bytes_max=budget, windows_ahead=ahead)
        yield f"farthest_next_use, H = {'infinite' if ahead is None else ahead}", read
    for half_life in HALF_LIVES:
        for ahead in (0, 1):
            policy = FarthestNextUse(half_life)
            read = replay(trace, policy, resident_bytes_max=budget, windows_ahead=ahead)
            yield f"farthest_next_use, H = {ahead}, half-life {half_life}", read
    for share in SHARES_IN_FLIGHT:
        kept = int(budget * (1 - share))
        read = replay(trace, FarthestNextUse(), resident_bytes_max=kept, windows_ahead=HORIZON)
        yield f"farthest_next_use, H = {HORIZON}, {share:.0%} in flight", read
