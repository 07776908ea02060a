"""LanceDB's `IVF_RQ` as an expert takes it, on Lance, its engine.

The table has the centroids of our index and its rows, cluster after cluster. Lance finds the probes
itself, reads through the page cache, and keeps partitions in its own cache. Its refine reads the
rows of each query for itself; here a window is searched without it, the rows that any of its
queries wants are taken by one call, each once, and re-ranked outside.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    AskedWindow,
    ContestantEntry,
    FoundRows,
    Int64,
    Limits,
    SearchData,
)
from bench.search.contestants.mapped_rows import best_rows
from carpool.errors import ConfigError

NAME = "lancedb"
TABLE_NAME = "vectors.lance"
ROW, VECTOR, ROW_ID, DISTANCE = "row", "vector", "_rowid", "_distance"
METRIC = "dot"
CANDIDATES = 200
"""Rows that are re-ranked for a top 10: with 1 bit a number it then finds as much as IVF_FLAT."""
PROCESS_BYTES = 352 << 20
"""Memory of the process without the index cache: interpreter, Lance, metadata, reads, pages."""
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
    """Writes a table of all rows with an index. Raises `ConfigError` without pylance."""
    from bench.data.clusters import open_clusters, read_clusters

    os.environ.setdefault("LANCE_LOG", "error")  # it warns about a table that it is to make
    lance, arrow = _load("lance"), _load("pyarrow")
    index = open_clusters(data.index_dir)
    vector_type = arrow.list_(arrow.float32(), index.manifest.dimension)
    schema = arrow.schema([(ROW, arrow.int64()), (VECTOR, vector_type)])

    def batches() -> Iterator[Any]:
        for cluster in read_clusters(index):
            vectors = arrow.FixedSizeListArray.from_arrays(
                arrow.array(cluster.vectors.ravel()), type=vector_type
            )
            yield arrow.RecordBatch.from_arrays([arrow.array(cluster.rows), vectors], schema=schema)

    reader = arrow.RecordBatchReader.from_batches(schema, batches())
    table = lance.write_dataset(reader, str(folder / TABLE_NAME), schema=schema)
    centroids = np.ascontiguousarray(index.centroids, dtype=np.float32)
    table.create_index(
        VECTOR,
        "IVF_RQ",
        metric=METRIC,
        num_partitions=len(centroids),
        ivf_centroids=centroids,
        num_bits=1,
    )


class LanceDb:
    """A search, a take and exact scores for each window."""

    _table: Any = None
    _top_k = 0

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the table. Raises `ConfigError` without Lance."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        threadpool_limits(limits=1, user_api="blas")
        os.environ["LANCE_CPU_THREADS"] = str(limits.threads)  # read when it is imported
        caches: dict[str, int] = {}
        if limits.memory_bytes is not None:
            # Smaller: it reads more than it must. Larger: no pages are left to read through.
            cache_bytes = max(INDEX_CACHE_BYTES_MIN, limits.memory_bytes - PROCESS_BYTES)
            caches["index_cache_size_bytes"] = cache_bytes
            caches["metadata_cache_size_bytes"] = METADATA_CACHE_BYTES
        path = data.prepared_dir / NAME / TABLE_NAME
        self._table = _load("lance").dataset(str(path), **caches)
        counts = [fragment.count_rows() for fragment in self._table.get_fragments()]
        self._first_places = np.concatenate([[0], np.cumsum(counts)])
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one search and one take of Lance."""
        count = len(window.vectors)
        answer = self._table.to_table(
            columns=[ROW_ID, DISTANCE],
            nearest={
                "column": VECTOR,
                "q": window.vectors if count > 1 else window.vectors[0],
                "k": -(-CANDIDATES * self._top_k // 10),
                "nprobes": window.probes.shape[1],
                "metric": METRIC,
            },
        )
        proposed = split_answer(answer, count)
        ids = np.unique(np.concatenate(proposed))
        # An id is the fragment and the place in it; take wants the place in the table.
        places = self._first_places[ids >> 32] + (ids & 0xFFFFFFFF)
        (taken,) = self._table.take(places, columns=[ROW, VECTOR]).to_batches()
        rows, exact = taken[ROW].to_numpy(), taken[VECTOR].flatten().to_numpy()
        for at, candidates in enumerate(proposed):
            there = np.searchsorted(ids, candidates)
            scores = exact.reshape(len(ids), -1)[there] @ window.vectors[at]
            yield FoundRows(window.first + at, best_rows(rows[there], scores, self._top_k))

    def bytes_read(self) -> None:
        """Returns nothing: Lance does not report its reads."""

    def close(self) -> None:
        """Frees the table."""
        self._table = None


def split_answer(answer: Any, queries: int) -> list[Int64]:
    """Returns the ids of the rows of each of `queries` from an Arrow table, best first.

    The column `query_index` names the query of a row; a table for one query has none.
    """
    rows: Int64 = answer[ROW_ID].to_numpy().astype(np.int64)
    distances = answer[DISTANCE].to_numpy()
    owners = (
        answer["query_index"].to_numpy() if queries > 1 else np.zeros(len(rows), dtype=np.int64)
    )
    order = np.lexsort((rows, distances, owners))
    bounds = np.searchsorted(owners[order], np.arange(queries + 1))
    return [rows[order[start:stop]] for start, stop in itertools.pairwise(bounds.tolist())]


ENTRIES = (
    ContestantEntry(
        name=NAME,
        is_exact=False,
        needs="pylance",
        make=LanceDb,
        prepare=make_table,
    ),
)
