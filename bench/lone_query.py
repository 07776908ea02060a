"""A lone query whose clusters lie in memory: what a search costs beside the same FAISS call, and
whether both find the same.

All search the same vectors in the same clusters, in turns of `TURN` queries, another one first each
time. Before a turn the machine settles: FAISS's threads go on spinning for some 10 ms after a call,
on cores that another would need. How long the machine rests after each call decides much, too:
threads that spin need not be woken, and those that sleep are woken late. So several rests are
measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Annotated, Any, Protocol

import faiss
import msgspec
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.agreement import TOLERANCE
from bench.figures import Spread, spread
from bench.machine import Machine, Revision, this_machine, this_revision
from carpool.disk.centroids import probe
from carpool.disk.pages import ClusterPages, choose_layout, encode_pages
from searcher.scoring.pool import ScoringPool
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import TopTable

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Search = Callable[[Float32, Int64, int], tuple[Float32, Int64]]
"""(vector (dim,) float32, its clusters (nprobe,), top_k) -> (n,) scores and (n,) row numbers, best
first.
"""

NOISE = 0.08
"""Of each of a vector's numbers around its centroid's, which has length one: neighbouring clusters
overlap.
"""
TURN = 25
"""Queries that one of them answers before the next has its turn."""
SETTLE_S = 0.1
ONLY = np.array([0])
"""Which of the queries that are asked: there is one."""
SIZE_SIGMA = 0.5
"""Of the log-normal sizes of clusters: the largest of 100 is some ten times the smallest."""


class LoneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. `rows`, `dimension` and `nlist` are those of made-up data, or of the
    index.
    """

    rows: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    dimension: Annotated[int, msgspec.Meta(ge=1)] = 384
    nlist: Annotated[int, msgspec.Meta(ge=1)] = 100
    nprobe: Annotated[int, msgspec.Meta(ge=1)] = 10
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    queries: Annotated[int, msgspec.Meta(ge=1)] = 500
    warm_up: Annotated[int, msgspec.Meta(ge=0)] = 20
    threads: Annotated[int, msgspec.Meta(ge=1)] = 2
    rests_ms: tuple[int, ...] = (0, 10, 50)
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


class LoneData(Protocol):
    """What is searched and asked. `queries`: (warm_up + queries, dim) float32; `probes`: (..,
    nprobe) int64, C(q) of each.
    """

    queries: Float32
    probes: Int64

    def faiss_search(self, vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        """A `Search` by FAISS, with as many threads as OpenMP has."""
        ...

    def rows_scanned(self) -> list[int]:
        """The rows in the clusters of each query."""
        ...

    def true_scores(self, query: Float32, rows: Int64) -> Float32:
        """The scores of `rows` for `query`, summed in float64."""
        ...


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found beside what FAISS found; `tied`: ids differ where scores are within 1e-5."""

    same: int
    tied: int
    different: int


class LoneTimes(msgspec.Struct, frozen=True, kw_only=True):
    """At one rest between calls: times in ms, who found what, and how much longer ours took than
    FAISS, at p50 and p99.
    """

    rest_ms: int
    times: dict[str, Spread]
    verdicts: dict[str, Verdicts]
    over_p50: float
    over_p99: float


class LoneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The run. `faiss_one_thread`: in ms, at the first of the rests."""

    what: str
    options: LoneOptions
    machine: Machine
    revision: Revision | None
    rows_scanned: Spread
    at_rest: tuple[LoneTimes, ...]
    faiss_one_thread: Spread

    @property
    def different(self) -> int:
        """Results that are neither the same nor tied."""
        return sum(
            verdicts.different for times in self.at_rest for verdicts in times.verdicts.values()
        )

    @property
    def over_ms_max(self) -> float:
        """The most that ours took longer than FAISS, at the median or at p99, after any rest."""
        return max(over for times in self.at_rest for over in (times.over_p50, times.over_p99))


CARPOOL, SCORING, FAISS = "Carpool", "scoring alone", "FAISS"
Contestants = AbstractContextManager[Mapping[str, Search]]
"""Ours, by name: the first is the one that is compared with FAISS."""


class LoneIndex:
    """Made-up vectors in clusters, held twice: as pages, and in an IVF-Flat of FAISS. Takes twice
    the vectors' bytes.
    """

    def __init__(self, options: LoneOptions) -> None:
        """Makes them: unit vectors around random directions, in clusters of uneven sizes. The seed
        decides all.
        """
        generator = np.random.default_rng(options.seed)
        self._dimension = options.dimension
        self.centroids = _units(
            generator.standard_normal((options.nlist, options.dimension), dtype=np.float32)
        )
        shares = generator.lognormal(0, SIZE_SIGMA, options.nlist)
        ends = np.round(np.cumsum(shares) / shares.sum() * options.rows).astype(np.int64)
        self._starts = np.concatenate([[0], ends])
        self._quantizer = faiss.IndexFlatIP(
            options.dimension
        )  # kept: the IVF index does not own it
        self._quantizer.add(self.centroids)
        self._ivf: Any = faiss.IndexIVFFlat(
            self._quantizer, options.dimension, options.nlist, faiss.METRIC_INNER_PRODUCT
        )
        self._ivf.is_trained, self._ivf.nprobe, self._ivf.ntotal = (
            True,
            options.nprobe,
            options.rows,
        )
        lists: Any = self._ivf.invlists
        layout = choose_layout(options.dimension, "float32")
        self.clusters: list[ClusterPages] = []
        for cluster, (start, end) in enumerate(pairwise(self._starts.tolist())):
            vectors = _units(self.centroids[cluster] + NOISE * self._noise(generator, end - start))
            rows = np.arange(start, end, dtype=np.int64)
            lists.add_entries(
                cluster,
                len(rows),
                faiss.swig_ptr(rows),
                faiss.swig_ptr(vectors.view(np.uint8).reshape(-1)),
            )
            pages = encode_pages(layout, vectors, rows, seed=cluster)
            self.clusters.append(ClusterPages(cluster, layout, len(rows), (pages,)))
        near = generator.integers(0, options.nlist, options.warm_up + options.queries)
        self.queries = _units(self.centroids[near] + NOISE * self._noise(generator, len(near)))
        self.probes: Int64 = probe(self.centroids, self.queries, options.nprobe).astype(np.int64)

    def faiss_search(self, vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        """The best rows as FAISS finds them, with as many threads as OpenMP has: one a cluster at a
        time.
        """
        return faiss_search(self._ivf, vector, clusters, top_k)

    def rows_scanned(self) -> list[int]:
        """The rows in the clusters of each query."""
        counts = np.diff(self._starts)
        return [int(counts[clusters].sum()) for clusters in self.probes]

    def true_scores(self, query: Float32, rows: Int64) -> Float32:
        """The scores of `rows` for `query`, from the pages, summed in float64."""
        found = []
        for row in rows.tolist():
            cluster = int(np.searchsorted(self._starts, row, side="right")) - 1
            pages = self.clusters[cluster]
            page, place = divmod(row - int(self._starts[cluster]), pages.layout.rows_per_page)
            vector = pages.layout.vectors(pages.pieces[0], place)[page]
            found.append(float(vector.astype(np.float64) @ query.astype(np.float64)))
        return np.array(found, np.float32)

    def _noise(self, generator: np.random.Generator, count: int) -> Float32:
        return generator.standard_normal((count, self._dimension), dtype=np.float32)


def faiss_search(ivf: Any, vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
    """The same call of FAISS: one query and its clusters, on all threads that OpenMP has."""
    # Mode 0, the default, spreads queries over threads: a lone one would get one thread.
    ivf.parallel_mode = 1 if faiss.omp_get_max_threads() > 1 else 0
    ivf.nprobe = len(clusters)
    scores, rows = ivf.search_preassigned(vector[None, :], top_k, clusters[None, :], None)
    found = rows[0] >= 0
    return scores[0][found], rows[0][found]


def measure(
    ours: Mapping[str, Search], data: LoneData, options: LoneOptions, rest_ms: int
) -> LoneTimes:
    """Times `ours` and FAISS on every query of `data`, in turns, and compares what they find.
    Blocks.

    The first `options.warm_up` queries are compared and not timed.
    """
    searches = {**ours, FAISS: data.faiss_search}
    names = tuple(searches)
    times: dict[str, list[float]] = {name: [] for name in names}
    verdicts = {name: [0, 0, 0] for name in ours}
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn, first in enumerate(range(0, len(data.queries), TURN)):
            asked = range(first, min(first + TURN, len(data.queries)))
            found: dict[str, list[tuple[Float32, Int64]]] = {}
            for place in range(len(names)):
                name = names[(place + turn) % len(names)]
                took_ms, found[name] = _take_turn(
                    searches[name], data, asked, options.top_k, rest_ms
                )
                times[name] += took_ms[max(0, options.warm_up - first) :]
            for name in ours:
                for number, mine, theirs in zip(asked, found[name], found[FAISS], strict=True):
                    verdicts[name][_verdict(data, data.queries[number], mine, theirs)] += 1
    finally:
        if collects:
            gc.enable()
    spreads = {name: _spread(took_ms) for name, took_ms in times.items()}
    compared, faiss_spread = spreads[names[0]], spreads[FAISS]
    return LoneTimes(
        rest_ms=rest_ms,
        times=spreads,
        verdicts={
            name: Verdicts(same=same, tied=tied, different=different)
            for name, (same, tied, different) in verdicts.items()
        },
        over_p50=compared.p50 - faiss_spread.p50,
        over_p99=compared.p99 - faiss_spread.p99,
    )


def _take_turn(
    search: Search, data: LoneData, asked: range, top_k: int, rest_ms: int
) -> tuple[list[float], list[tuple[Float32, Int64]]]:
    """How long each of these queries took, in ms, and what was found."""
    time.sleep(SETTLE_S)
    times: list[float] = []
    found: list[tuple[Float32, Int64]] = []
    for number in asked:
        vector, clusters = data.queries[number], data.probes[number]
        began = time.perf_counter()
        found.append(search(vector, clusters, top_k))
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(rest_ms / 1000)
    return times, found


def run(options: LoneOptions) -> LoneReport:
    """Measures the searcher's scoring alone, on made-up data, beside FAISS. Blocks; needs twice the
    vectors' bytes.
    """
    index = LoneIndex(options)
    return measure_all(
        f"{options.rows:,} x {options.dimension} made-up vectors",
        index,
        options,
        pool_searches(index.clusters, options),
    )


def measure_all(
    what: str, data: LoneData, options: LoneOptions, contestants: Contestants
) -> LoneReport:
    """Measures at every rest, and FAISS on one thread; enters and leaves `contestants`. Blocks."""
    threads_before = faiss.omp_get_max_threads()
    try:
        with threadpool_limits(limits=1, user_api="blas"), contestants as ours:
            faiss.omp_set_num_threads(options.threads)  # after BLAS was limited, which changes it
            at_rest = tuple(measure(ours, data, options, rest_ms) for rest_ms in options.rests_ms)
            faiss.omp_set_num_threads(1)
            alone = measure({}, data, options, options.rests_ms[0])
    finally:
        faiss.omp_set_num_threads(threads_before)
    return LoneReport(
        what=what,
        options=options,
        machine=this_machine(),
        revision=this_revision(),
        rows_scanned=_spread(data.rows_scanned()),
        at_rest=at_rest,
        faiss_one_thread=alone.times[FAISS],
    )


@contextmanager
def pool_searches(
    clusters: Sequence[ClusterPages], options: LoneOptions
) -> Iterator[Mapping[str, Search]]:
    """Yields the search of pages in memory by the searcher's scoring alone: no cache, no plan, no
    queues.
    """
    with ScoringPool(options.threads) as pool:
        yield {SCORING: pool_search(clusters.__getitem__, pool)}


def pool_search(pages: Callable[[int], ClusterPages], pool: ScoringPool) -> Search:
    """Returns a search of what `pages` gives for a cluster."""
    table = TopTable()

    def search(vector: Float32, wanted: Int64, top_k: int) -> tuple[Float32, Int64]:
        slot = table.add(top_k)
        asked = QueryBatch(np.array([slot]), vector[None, :])
        table.merge(
            pool.run([Scoring(pages(cluster), ONLY) for cluster in wanted.tolist()], asked, table)
        )
        pool.rest()
        best = table.best(slot)
        table.remove(slot)
        return best.scores, best.rows

    return search


def lines(report: LoneReport) -> Iterator[str]:
    """The report as lines of text."""
    options = report.options
    yield (
        f"{report.what}, {options.nlist} clusters, nprobe {options.nprobe}, top {options.top_k}: "
        f"{report.rows_scanned.p50:,.0f} rows a query; {options.queries} queries, "
        f"{options.threads} threads, "
        f"load {report.machine.load_1min:.1f} on {report.machine.cores} cores"
    )
    yield f"{'':24}{'p50 ms':>9}{'p99 ms':>9}"
    for at_rest in report.at_rest:
        yield f"a rest of {at_rest.rest_ms} ms"
        for name, times in at_rest.times.items():
            yield f"  {name:22}{times.p50:9.2f}{times.p99:9.2f}"
        yield f"  {'more than FAISS':22}{at_rest.over_p50:9.2f}{at_rest.over_p99:9.2f}"
    alone = report.faiss_one_thread
    yield f"{'FAISS, 1 thread':24}{alone.p50:9.2f}{alone.p99:9.2f}"
    every = [verdicts for at_rest in report.at_rest for verdicts in at_rest.verdicts.values()]
    yield (
        f"results: {sum(each.same for each in every)} the same, {sum(each.tied for each in every)} "
        f"but for scores within {TOLERANCE:g}, {report.different} different"
    )


def _verdict(
    data: LoneData, vector: Float32, ours: tuple[Float32, Int64], theirs: tuple[Float32, Int64]
) -> int:
    """0: the same rows; 1: others, whose scores are within the tolerance at each rank; 2: anything
    else.
    """
    rows, their_rows = ours[1], theirs[1]
    if np.array_equal(rows, their_rows):
        return 0
    if len(rows) != len(their_rows) or len(set(rows.tolist())) != len(rows):
        return 2
    gaps = np.abs(data.true_scores(vector, rows) - theirs[0])
    return 1 if bool((gaps < TOLERANCE).all()) else 2


def _spread(values: Sequence[float]) -> Spread:
    found = spread(values)
    assert found is not None, "there is a query at least"
    return found


def _units(vectors: Float32) -> Float32:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
