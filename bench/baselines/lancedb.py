"""LanceDB's `IVF_RQ` as a user takes it, with refine, and as an expert takes it.

Tables have the centroids of our index and its rows, cluster after cluster. Lance finds the
probes itself, reads through the page cache, and keeps partitions in its own cache.

Refine reads the rows of each query for itself. The expert searches a window without it, takes the
rows that any of its queries wants by one call, each once, and re-ranks them outside.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.contestant import (
    AskedQuery,
    AskedWindow,
    ContestantCounters,
    ContestantEntry,
    Float32,
    FoundRows,
    Int64,
    Limits,
    Preparation,
    SearchData,
)
from bench.baselines.mapped_rows import best_rows
from carpool.errors import ConfigError

PREPARATION_NAME = "lancedb-ivf-rq"
TABLE = "vectors"
ROW = "row"
VECTOR = "vector"
METRIC = "dot"
RQ_BITS = 1
REFINE_FACTOR = 20
"""200 rows of a top 10 are re-ranked: with 1 bit a row, IVF_RQ then finds as much as IVF_FLAT."""
CANDIDATES = 200
"""Rows a query that the expert re-ranks for a top 10: as many as refine does."""
ROW_ID = "_rowid"
DISTANCE = "_distance"
WRITE_ROWS = 8192
PROCESS_BYTES = 320 << 20
"""Memory of the process without the index cache: interpreter, Lance, reads in flight, pages."""
METADATA_CACHE_BYTES = 32 << 20
INDEX_CACHE_BYTES_MIN = 16 << 20


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"LanceDB cannot run: {name} is not installed ({error}). pip install "
            "'carpool[bench]', or leave lancedb out of --contestants"
        ) from None


def make_table(data: SearchData, folder: Path) -> None:
    """Writes a table of all rows with an index.

    Needs memory for one cluster. Raises `ConfigError` without the packages lancedb and pylance.
    """
    from bench.data.clusters import open_clusters, read_clusters

    os.environ.setdefault("LANCE_LOG", "error")  # it warns about a table that it is to make
    lance, arrow = _load("lance"), _load("pyarrow")
    index = open_clusters(data.index_dir)
    dimension = index.manifest.dimension
    vector_type = arrow.list_(arrow.float32(), dimension)
    schema = arrow.schema([(ROW, arrow.int64()), (VECTOR, vector_type)])

    def batches() -> Iterator[Any]:
        for cluster in read_clusters(index):
            for start in range(0, len(cluster.rows), WRITE_ROWS):
                chunk = np.ascontiguousarray(cluster.vectors[start : start + WRITE_ROWS])
                vectors = arrow.FixedSizeListArray.from_arrays(
                    arrow.array(chunk.ravel()), type=vector_type
                )
                numbers = arrow.array(cluster.rows[start : start + WRITE_ROWS])
                yield arrow.RecordBatch.from_arrays([numbers, vectors], schema=schema)

    reader = arrow.RecordBatchReader.from_batches(schema, batches())
    table = lance.write_dataset(reader, str(folder / f"{TABLE}.lance"), schema=schema)
    centroids = np.ascontiguousarray(index.centroids, dtype=np.float32)
    table.create_index(
        VECTOR,
        "IVF_RQ",
        metric=METRIC,
        num_partitions=len(centroids),
        ivf_centroids=centroids,
        num_bits=RQ_BITS,
    )


class LanceDb:
    """A table of LanceDB with a call for each window."""

    def __init__(self) -> None:
        self._table: Any = None
        self._nprobe = 0
        self._top_k = 0

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the table. Raises `ConfigError` without LanceDB."""
        os.environ["LANCE_CPU_THREADS"] = str(limits.threads)  # read when it is imported
        lancedb = _load("lancedb")
        session = None
        if limits.memory_bytes is not None:
            session = lancedb.Session(
                index_cache_size_bytes=index_cache_bytes(limits.memory_bytes),
                metadata_cache_size_bytes=METADATA_CACHE_BYTES,
            )
        folder = data.prepared_dir / PREPARATION_NAME
        self._table = lancedb.connect(str(folder), session=session).open_table(TABLE)
        self._nprobe = data.probes.shape[1]
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one call of LanceDB."""
        for query, rows in zip(window.queries, self._find(window.queries), strict=True):
            yield FoundRows(query.number, rows)

    def _find(self, batch: Sequence[AskedQuery]) -> list[Int64]:
        vectors = [query.vector for query in batch]
        request = (
            self._table.search(
                vectors if len(vectors) > 1 else vectors[0], vector_column_name=VECTOR
            )
            .distance_type(METRIC)
            .nprobes(self._nprobe)
            .limit(self._top_k)
            .select([ROW, DISTANCE])
            .refine_factor(REFINE_FACTOR)
        )
        return split_answer(request.to_arrow(), len(vectors))

    def counters(self) -> ContestantCounters:
        """Returns nothing: LanceDB does not report its reads."""
        return ContestantCounters()

    def close(self) -> None:
        """Frees the table."""
        self._table = None


class LanceDbBest(LanceDb):
    """`IVF_RQ` with one search and one take for each window, and exact scores outside.

    On Lance, the engine of LanceDB: the same search, a take in about a fifth less time, and less
    memory than LanceDB needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first_places: Int64 = np.zeros(0, np.int64)

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the table. Raises `ConfigError` without Lance."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        threadpool_limits(limits=1, user_api="blas")
        os.environ["LANCE_CPU_THREADS"] = str(limits.threads)  # read when it is imported
        lance = _load("lance")
        caches: dict[str, int] = {}
        if limits.memory_bytes is not None:
            caches["index_cache_size_bytes"] = index_cache_bytes(limits.memory_bytes)
            caches["metadata_cache_size_bytes"] = METADATA_CACHE_BYTES
        path = data.prepared_dir / PREPARATION_NAME / f"{TABLE}.lance"
        self._table = lance.dataset(str(path), **caches)
        counts = [fragment.count_rows() for fragment in self._table.get_fragments()]
        self._first_places = np.concatenate([[0], np.cumsum(counts)])
        self._nprobe = data.probes.shape[1]
        self._top_k = data.top_k

    def _find(self, batch: Sequence[AskedQuery]) -> list[Int64]:
        vectors = np.stack([query.vector for query in batch])
        answer = self._table.to_table(
            columns=[ROW_ID, DISTANCE],
            nearest={
                "column": VECTOR,
                "q": vectors if len(vectors) > 1 else vectors[0],
                "k": -(-CANDIDATES * self._top_k // 10),
                "nprobes": self._nprobe,
                "metric": METRIC,
            },
        )
        proposed = split_answer(answer, len(batch), column=ROW_ID)
        ids = np.unique(np.concatenate(proposed))
        rows, exact = self._take(ids)
        found = []
        for query, candidates in zip(batch, proposed, strict=True):
            at = np.searchsorted(ids, candidates)
            found.append(best_rows(rows[at], exact[at] @ query.vector, self._top_k))
        return found

    def _take(self, ids: Int64) -> tuple[Int64, Float32]:
        """Returns row numbers and vectors of the rows with these ids of Lance, in their order."""
        # An id is the fragment and the place in it; take wants the place in the table.
        places = self._first_places[ids >> 32] + (ids & 0xFFFFFFFF)
        (taken,) = self._table.take(places, columns=[ROW, VECTOR]).to_batches()
        vectors: Float32 = taken[VECTOR].flatten().to_numpy().reshape(len(ids), -1)
        return taken[ROW].to_numpy(), vectors


def split_answer(answer: Any, queries: int, *, column: str = ROW) -> list[Int64]:
    """Returns the row numbers of each of `queries` from an Arrow table, best first.

    `column`: of the numbers. The column `query_index` names the query of a row; a table for one
    query has none.
    """
    rows: Int64 = answer[column].to_numpy().astype(np.int64)
    distances = answer[DISTANCE].to_numpy()
    owners = (
        answer["query_index"].to_numpy() if queries > 1 else np.zeros(len(rows), dtype=np.int64)
    )
    order = np.lexsort((rows, distances, owners))
    bounds = np.searchsorted(owners[order], np.arange(queries + 1))
    return [rows[order[start:stop]] for start, stop in itertools.pairwise(bounds.tolist())]


def index_cache_bytes(memory_bytes: int) -> int:
    """Returns the size of LanceDB's index cache in a process limited to `memory_bytes`.

    Smaller: it reads more than it must. Larger: the kernel has no pages left to read through.
    """
    return max(INDEX_CACHE_BYTES_MIN, memory_bytes - PROCESS_BYTES - METADATA_CACHE_BYTES)


PREPARATION = Preparation(name=PREPARATION_NAME, make=make_table)
ENTRIES = (
    ContestantEntry(
        name="lancedb-rq-batched",
        summary=f"LanceDB IVF_RQ, {RQ_BITS} bit, refine {REFINE_FACTOR}, a call for each window",
        is_exact=False,
        make=LanceDb,
        preparation=PREPARATION,
    ),
    ContestantEntry(
        name="lancedb-best",
        summary=f"LanceDB IVF_RQ, {RQ_BITS} bit, a search without refine and a take of "
        f"{CANDIDATES} rows a query, each row once, for each window",
        is_exact=False,
        make=LanceDbBest,
        preparation=PREPARATION,
    ),
)
