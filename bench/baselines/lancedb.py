"""LanceDB as a user takes it: `IVF_FLAT`, and `IVF_RQ` with refine.

Tables have the centroids of our index and its rows, cluster after cluster. Lance finds the
probes itself, reads through the page cache, and keeps partitions in its own cache.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.baselines.contestant import (
    AskedQuery,
    AskedWindow,
    ContestantCounters,
    ContestantEntry,
    FoundRows,
    Int64,
    Limits,
    Preparation,
    SearchData,
)
from carpool.errors import ConfigError

Kind = Literal["IVF_FLAT", "IVF_RQ"]

TABLE = "vectors"
ROW = "row"
VECTOR = "vector"
METRIC = "dot"
RQ_BITS = 1
REFINE_FACTOR = 20
"""200 rows of a top 10 are re-ranked: with 1 bit a row, IVF_RQ then finds what IVF_FLAT finds."""
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


def make_table(data: SearchData, folder: Path, *, kind: Kind) -> None:
    """Writes a table of all rows with an index of `kind`.

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
    options = {"num_bits": RQ_BITS} if kind == "IVF_RQ" else {}
    centroids = np.ascontiguousarray(index.centroids, dtype=np.float32)
    table.create_index(
        VECTOR,
        kind,
        metric=METRIC,
        num_partitions=len(centroids),
        ivf_centroids=centroids,
        **options,
    )


class LanceDb:
    """A table of LanceDB with a call for each query, or (`batched`) for each window."""

    def __init__(self, *, kind: Kind, batched: bool) -> None:
        self._kind = kind
        self._batched = batched
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
        folder = data.prepared_dir / preparation_name(self._kind)
        self._table = lancedb.connect(str(folder), session=session).open_table(TABLE)
        self._nprobe = data.probes.shape[1]
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one call of LanceDB, or each query by one."""
        queries = window.queries
        for batch in [queries] if self._batched else [(query,) for query in queries]:
            for query, rows in zip(batch, self._find(batch), strict=True):
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
            .select([ROW, "_distance"])
        )
        if self._kind == "IVF_RQ":
            request = request.refine_factor(REFINE_FACTOR)
        return split_answer(request.to_arrow(), len(vectors))

    def counters(self) -> ContestantCounters:
        """Returns nothing: LanceDB does not report its reads."""
        return ContestantCounters()

    def close(self) -> None:
        """Frees the table."""
        self._table = None


def split_answer(answer: Any, queries: int) -> list[Int64]:
    """Returns the row numbers of each of `queries` from an Arrow table, best first.

    The column `query_index` names the query of a row; a table for one query has none.
    """
    rows: Int64 = answer[ROW].to_numpy()
    distances = answer["_distance"].to_numpy()
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


def preparation_name(kind: Kind) -> str:
    """Returns the folder of the table with an index of `kind`."""
    return f"lancedb-{kind.lower().replace('_', '-')}"


def _entries(name: str, kind: Kind, summary: str) -> tuple[ContestantEntry, ...]:
    preparation = Preparation(name=preparation_name(kind), make=partial(make_table, kind=kind))
    return tuple(
        ContestantEntry(
            name=name + suffix,
            summary=f"{summary}, a call for each {unit}",
            is_exact=kind == "IVF_FLAT",
            make=partial(LanceDb, kind=kind, batched=batched),
            preparation=preparation,
        )
        for suffix, unit, batched in (("", "query", False), ("-batched", "window", True))
    )


ENTRIES = (
    *_entries("lancedb-flat", "IVF_FLAT", "LanceDB IVF_FLAT"),
    *_entries("lancedb-rq", "IVF_RQ", f"LanceDB IVF_RQ, {RQ_BITS} bit, refine {REFINE_FACTOR}"),
)
