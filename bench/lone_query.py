"""A lone query whose clusters lie in memory: what a search costs beside the same FAISS call, and whether both find the same.

Both search the same vectors in the same clusters, taking turns: the order changes with every query, so that neither profits
from what the other left behind. After each call the machine rests, for FAISS's threads go on spinning for a while.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import faiss
import msgspec
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.agreement import TOLERANCE
from bench.figures import Spread, spread
from bench.machine import Machine, this_machine
from carpool.disk.centroids import probe
from carpool.disk.pages import ClusterPages, choose_layout, encode_pages
from searcher.scoring_pool import Scoring, ScoringPool
from searcher.top_k import TopTable

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Search = Callable[[Float32, Int64, int], Int64]
"""(vector (dim,) float32, its clusters (nprobe,), top_k) -> (n,) row numbers, best first."""
FaissSearch = Callable[[Float32, int], tuple[Float32, Int64]]
"""(vector (dim,) float32, top_k) -> (n,) scores and (n,) row numbers, best first."""

NOISE = 0.08
"""Of each of a vector's numbers around its centroid's, which has length one: neighbouring clusters overlap."""
SIZE_SIGMA = 0.5
"""Of the log-normal sizes of clusters: the largest of 100 is some ten times the smallest."""


class LoneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    rows: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    dimension: Annotated[int, msgspec.Meta(ge=1)] = 384
    nlist: Annotated[int, msgspec.Meta(ge=1)] = 100
    nprobe: Annotated[int, msgspec.Meta(ge=1)] = 10
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    queries: Annotated[int, msgspec.Meta(ge=1)] = 500
    warm_up: Annotated[int, msgspec.Meta(ge=0)] = 20
    threads: Annotated[int, msgspec.Meta(ge=1)] = 2
    rest_ms: Annotated[int, msgspec.Meta(ge=0)] = 10
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


class Timed(NamedTuple):
    """How long each query took, in ms, and what was found; `tied`: ids differ where scores are within 1e-5."""

    ours: Spread
    faiss: Spread
    same: int
    tied: int
    different: int


class LoneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The run: times in ms. `over_p50` and `over_p99`: ours less that of FAISS with as many threads."""

    options: LoneOptions
    machine: Machine
    rows_scanned: Spread
    ours: Spread
    faiss: Spread
    faiss_one_thread: Spread
    over_p50: float
    over_p99: float
    same: int
    tied: int
    different: int


class LoneIndex:
    """Made-up vectors in clusters, held twice: as pages, and in an IVF-Flat of FAISS. Takes twice the vectors' bytes."""

    def __init__(self, options: LoneOptions) -> None:
        """Makes them: unit vectors around random directions, in clusters of uneven sizes. The seed decides all."""
        generator = np.random.default_rng(options.seed)
        self._dimension = options.dimension
        self.centroids = _units(generator.standard_normal((options.nlist, options.dimension), dtype=np.float32))
        shares = generator.lognormal(0, SIZE_SIGMA, options.nlist)
        ends = np.round(np.cumsum(shares) / shares.sum() * options.rows).astype(np.int64)
        self._starts = np.concatenate([[0], ends])
        self._quantizer = faiss.IndexFlatIP(options.dimension)  # kept: the IVF index does not own it
        self._quantizer.add(self.centroids)
        self._ivf: Any = faiss.IndexIVFFlat(
            self._quantizer, options.dimension, options.nlist, faiss.METRIC_INNER_PRODUCT
        )
        self._ivf.is_trained, self._ivf.nprobe, self._ivf.ntotal = True, options.nprobe, options.rows
        lists: Any = self._ivf.invlists
        layout = choose_layout(options.dimension, "float32")
        self.clusters: list[ClusterPages] = []
        for cluster, (start, end) in enumerate(pairwise(self._starts.tolist())):
            vectors = _units(self.centroids[cluster] + NOISE * self._noise(generator, end - start))
            rows = np.arange(start, end, dtype=np.int64)
            lists.add_entries(
                cluster, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(vectors.view(np.uint8).reshape(-1))
            )
            pages = encode_pages(layout, vectors, rows, seed=cluster)
            self.clusters.append(ClusterPages(cluster, layout, len(rows), (pages,)))
        near = generator.integers(0, options.nlist, options.warm_up + options.queries)
        self.queries = _units(self.centroids[near] + NOISE * self._noise(generator, len(near)))
        self.probes: Int64 = probe(self.centroids, self.queries, options.nprobe).astype(np.int64)

    def faiss_search(self, vector: Float32, top_k: int) -> tuple[Float32, Int64]:
        """The best rows as FAISS finds them, with as many threads as OpenMP has: one a cluster at a time."""
        # Mode 0, the default, spreads queries over threads: a lone one would get one thread.
        self._ivf.parallel_mode = 1 if faiss.omp_get_max_threads() > 1 else 0
        scores, rows = self._ivf.search(vector[None, :], top_k)
        return scores[0], rows[0]

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


def measure(search: Search, faiss_search: FaissSearch, index: LoneIndex, options: LoneOptions) -> Timed:
    """Times both on every query of `index`, one after the other, and compares what they find. Blocks.

    `search` gets a query's vector and its clusters, as a searcher does; FAISS finds its clusters itself, some 20 us of its
    time. The first `options.warm_up` queries are compared and not timed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    verdicts = [0, 0, 0]
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number, (vector, clusters) in enumerate(zip(index.queries, index.probes, strict=True)):
            found: dict[int, Any] = {}
            for who in ((0, 1), (1, 0))[number % 2]:
                began = time.perf_counter()
                found[who] = (
                    search(vector, clusters, options.top_k) if who == 0 else faiss_search(vector, options.top_k)
                )
                took_s = time.perf_counter() - began
                if number >= options.warm_up:
                    times[who].append(took_s * 1000)
                time.sleep(options.rest_ms / 1000)
            verdicts[_verdict(index, vector, found[0], *found[1])] += 1
    finally:
        if collects:
            gc.enable()
    ours, theirs = spread(times[0]), spread(times[1])
    assert ours is not None and theirs is not None  # there is a query at least
    return Timed(ours, theirs, *verdicts)


def run(options: LoneOptions, make_search: Callable[[LoneIndex], Search] | None = None) -> LoneReport:
    """Builds the index, measures `make_search(index)` (the scoring pool, by default) beside FAISS, and reports. Blocks."""
    index = LoneIndex(options)
    threads_before = faiss.omp_get_max_threads()
    try:
        with threadpool_limits(limits=1, user_api="blas"), ScoringPool(options.threads) as pool:
            search = make_search(index) if make_search is not None else pool_search(index.clusters, pool)
            faiss.omp_set_num_threads(options.threads)  # after BLAS was limited, which changes it
            side_by_side = measure(search, index.faiss_search, index, options)
            faiss.omp_set_num_threads(1)
            alone = measure(search, index.faiss_search, index, options)
    finally:
        faiss.omp_set_num_threads(threads_before)
    rows_scanned = spread(index.rows_scanned())
    assert rows_scanned is not None
    return LoneReport(
        options=options,
        machine=this_machine(),
        rows_scanned=rows_scanned,
        ours=side_by_side.ours,
        faiss=side_by_side.faiss,
        faiss_one_thread=alone.faiss,
        over_p50=side_by_side.ours.p50 - side_by_side.faiss.p50,
        over_p99=side_by_side.ours.p99 - side_by_side.faiss.p99,
        same=side_by_side.same,
        tied=side_by_side.tied,
        different=side_by_side.different,
    )


def pool_search(clusters: Sequence[ClusterPages], pool: ScoringPool) -> Search:
    """Returns a search of pages in memory by the searcher's scoring alone: no cache, no plan, no queues."""
    table = TopTable()

    def search(vector: Float32, wanted: Int64, top_k: int) -> Int64:
        slots = np.array([table.add(top_k)])
        queries = vector[None, :]
        table.merge(pool.run([Scoring(clusters[cluster], slots, queries) for cluster in wanted.tolist()], table))
        best = table.best(int(slots[0]))
        table.remove(int(slots[0]))
        return best.rows

    return search


def lines(report: LoneReport) -> Iterator[str]:
    """The report as lines of text."""
    options = report.options
    yield (
        f"{options.rows:,} x {options.dimension} made-up vectors, {options.nlist} clusters, nprobe {options.nprobe}, top "
        f"{options.top_k}: {report.rows_scanned.p50:,.0f} rows a query; {options.queries} queries, {options.threads} threads, "
        f"load {report.machine.load_1min:.1f} on {report.machine.cores} cores"
    )
    yield f"{'':24}{'p50 ms':>9}{'p99 ms':>9}"
    for name, times in (
        ("Carpool", report.ours),
        (f"FAISS, {options.threads} threads", report.faiss),
        ("FAISS, 1 thread", report.faiss_one_thread),
    ):
        yield f"{name:24}{times.p50:9.2f}{times.p99:9.2f}"
    yield f"{'more than FAISS':24}{report.over_p50:9.2f}{report.over_p99:9.2f}"
    yield f"results: {report.same} the same, {report.tied} but for scores within {TOLERANCE:g}, {report.different} different"


def _verdict(index: LoneIndex, vector: Float32, rows: Int64, their_scores: Float32, their_rows: Int64) -> int:
    """0: the same rows; 1: others, whose scores are within the tolerance at each rank; 2: anything else."""
    their_rows = their_rows[their_rows >= 0]
    if np.array_equal(rows, their_rows):
        return 0
    if len(rows) != len(their_rows) or len(set(rows.tolist())) != len(rows):
        return 2
    gaps = np.abs(index.true_scores(vector, rows) - their_scores[: len(rows)])
    return 1 if bool((gaps < TOLERANCE).all()) else 2


def _units(vectors: Float32) -> Float32:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
