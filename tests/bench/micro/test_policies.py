"""The study of policies against caches that are small enough to try everything."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baselines.eviction.lru import Lru
from bench.data.trace import Clusters, Trace, horizons
from bench.micro.policies import belady_bytes, replay, static_oracle_bytes, study
from schemas.record import ClusterId
from searcher.plan.eviction.farthest_next_use import FarthestNextUse

CLUSTERS = tuple(ClusterId(c) for c in range(5))
A, B, C, D, E = CLUSTERS

# A window is one query here: which of its queries wants a cluster makes no difference to what is
# read.
WANTED = st.lists(
    st.frozensets(st.sampled_from(CLUSTERS), min_size=1, max_size=3), min_size=1, max_size=9
)
SIZES = st.lists(st.integers(1, 4), min_size=5, max_size=5)


def trace_of(wanted: list[frozenset[ClusterId]], sizes: list[int]) -> Trace:
    return Trace(
        windows=tuple((tuple(sorted(clusters)),) for clusters in wanted),
        size_bytes=dict(zip(CLUSTERS, sizes, strict=True)),
        row_count=dict.fromkeys(CLUSTERS, 1),
    )


def sets(clusters: frozenset[ClusterId], trace: Trace, budget: int) -> list[frozenset[ClusterId]]:
    every = chain.from_iterable(combinations(sorted(clusters), n) for n in range(len(clusters) + 1))
    return [frozenset(kept) for kept in every if sum(trace.size_bytes[c] for c in kept) <= budget]


def least_bytes(trace: Trace, budget: int) -> int:
    """Every set that could be kept after every window."""
    best: dict[frozenset[ClusterId], int] = {frozenset(): 0}
    for clusters in map(frozenset, trace.wanted()):
        after: dict[frozenset[ClusterId], int] = {}
        for held, read in best.items():
            read += sum(trace.size_bytes[c] for c in clusters - held)
            for kept in sets(held | clusters, trace, budget):
                after[kept] = min(read, after.get(kept, read))
        best = after
    return min(best.values())


@settings(max_examples=60)
@given(wanted=WANTED, sizes=SIZES, budget=st.integers(0, 12))
def test_the_static_oracle_reads_no_more_than_any_fixed_set(
    wanted: list[frozenset[ClusterId]], sizes: list[int], budget: int
) -> None:
    trace = trace_of(wanted, sizes)
    for kept in sets(frozenset(CLUSTERS), trace, budget):
        read_once = kept & frozenset(chain(*wanted))  # no cache starts filled
        fixed = sum(
            trace.size_bytes[c]
            for clusters in [read_once, *(w - kept for w in wanted)]
            for c in clusters
        )
        assert static_oracle_bytes(trace, budget) <= fixed


@settings(max_examples=40)
@given(wanted=WANTED, sizes=SIZES, budget=st.integers(0, 12))
def test_no_cache_reads_less_than_belady_over_bytes(
    wanted: list[frozenset[ClusterId]], sizes: list[int], budget: int
) -> None:
    trace = trace_of(wanted, sizes)
    assert belady_bytes(trace, budget) <= least_bytes(trace, budget)


@settings(max_examples=40)
@given(wanted=WANTED, kept=st.integers(0, 4))
def test_farthest_next_use_reads_the_fewest_bytes_when_all_clusters_are_of_one_size(
    wanted: list[frozenset[ClusterId]], kept: int
) -> None:
    """Belady 1966: MIN is optimal for pages of one size."""
    trace = trace_of(wanted, [3] * 5)
    read = replay(trace, FarthestNextUse(), resident_bytes_max=3 * kept, windows_ahead=None)
    assert read == least_bytes(trace, 3 * kept) == belady_bytes(trace, 3 * kept)


@given(wanted=WANTED, ahead=st.none() | st.integers(0, 3))
def test_a_horizon_says_in_how_many_windows_a_cluster_is_wanted_next(
    wanted: list[frozenset[ClusterId]], ahead: int | None
) -> None:
    clusters: list[Clusters] = [tuple(sorted(window)) for window in wanted]
    for number, horizon in enumerate(horizons(clusters, ahead)):
        later = (
            clusters[number + 1 :] if ahead is None else clusters[number + 1 : number + 1 + ahead]
        )
        assert horizon == {
            c: 1 + next(n for n, w in enumerate(later) if c in w) for c in set(chain(*later))
        }


def test_a_small_trace_by_hand() -> None:
    trace = trace_of(
        [frozenset({A, B}), frozenset({C}), frozenset({A}), frozenset({B, C}), frozenset({A})],
        [1] * 5,
    )
    assert (
        replay(trace, FarthestNextUse(), resident_bytes_max=1, windows_ahead=None) == 5
    )  # A is kept from 1 to 5
    assert replay(trace, FarthestNextUse(), resident_bytes_max=1, windows_ahead=2) == 5
    assert (
        replay(trace, Lru(), resident_bytes_max=1, windows_ahead=0) == 7
    )  # each window pushes out the last one
    assert static_oracle_bytes(trace, 1) == 5  # A, from the first window on
    assert belady_bytes(trace, 1) == 5
    assert replay(trace, Lru(), resident_bytes_max=3, windows_ahead=0) == 3


def test_the_study_has_the_oracles_first_and_every_policy() -> None:
    trace = trace_of(
        [frozenset({A, B}), frozenset({C}), frozenset({A, D}), frozenset({B, C})] * 5,
        [1, 2, 1, 2, 1],
    )
    rows = dict(study(trace, 0.5))
    assert next(iter(rows)) == "static oracle"
    assert rows["static oracle"] == 1
    best = rows["belady, parts of clusters"]
    for name, ratio in rows.items():
        assert name == "static oracle" or best <= ratio <= rows["nothing kept"]
    assert {name.partition(",")[0] for name in rows} >= {
        "lru",
        "lfu",
        "edgerag",
        "gdsf",
        "tiny_lfu",
    }
