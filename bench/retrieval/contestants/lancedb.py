"""LanceDB as a user would take it: `IVF_FLAT`, and `IVF_RQ` with refine, a call for each query and
a call for each window.

Tables are trained from the centroids of our index, so that nlist and nprobe mean the same for all,
and hold the rows in the order of the corpus. Lance reads through the page cache and keeps
partitions in a cache of its own; it takes no probes from outside and finds them itself, from the
same centroids.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.retrieval.contestant import (
    Arrivals,
    Contestant,
    Counters,
    Dataset,
    Entry,
    Float32,
    Int64,
    Limits,
    Preparation,
    Query,
    Result,
)
from carpool.errors import ConfigError

Kind = Literal["IVF_FLAT", "IVF_RQ"]

TABLE = "vectors"
ROW = "row"
VECTOR = "vector"
METRIC = "dot"
RQ_BITS = 1
REFINE_FACTOR = 20
"""200 rows of a top 10 are re-ranked: at 1 bit this is what finds what IVF_FLAT finds, see
docs/data.md.
"""
WRITE_ROWS = 8192
PROCESS_BYTES = 320 << 20
"""What the process takes beside the cache of the index: interpreter, Lance's code, reads in flight,
pages of the kernel.
"""
METADATA_CACHE_BYTES = 32 << 20
INDEX_CACHE_BYTES_MIN = 16 << 20


def _load(name: str) -> Any:
    """The module, imported when a contestant is made ready: listing stays light."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"LanceDB takes no part: {name} is not installed ({error}). pip install "
            "'carpool[bench]', or leave out lancedb"
        ) from None


def make_table(dataset: Dataset, folder: Path, kind: Kind) -> None:
    """Writes a table of all rows with an index of `kind`. Takes the vectors twice on disk for a
    while; memory for a cluster.

    Raises `ConfigError` without the packages lancedb and pylance.
    """
    from bench.retrieval.dataset import open_view

    os.environ.setdefault(
        "LANCE_LOG", "error"
    )  # it warns that a table which is being made is not there
    lance, arrow = _load("lance"), _load("pyarrow")
    view = open_view(dataset.index_dir)
    scratch = folder / "rows.f32"
    rows: Float32 = np.memmap(
        scratch, dtype="<f4", mode="w+", shape=(view.row_count, view.dimension)
    )
    for cluster in view.clusters():
        rows[cluster.rows] = cluster.vectors
    vector_type = arrow.list_(arrow.float32(), view.dimension)
    schema = arrow.schema([(ROW, arrow.int64()), (VECTOR, vector_type)])

    def batches() -> Iterator[Any]:
        for start in range(0, view.row_count, WRITE_ROWS):
            chunk = np.ascontiguousarray(rows[start : start + WRITE_ROWS])
            numbers = arrow.array(np.arange(start, start + len(chunk), dtype=np.int64))
            vectors = arrow.FixedSizeListArray.from_arrays(
                arrow.array(chunk.ravel()), type=vector_type
            )
            yield arrow.RecordBatch.from_arrays([numbers, vectors], schema=schema)

    reader = arrow.RecordBatchReader.from_batches(schema, batches())
    table = lance.write_dataset(reader, str(folder / f"{TABLE}.lance"), schema=schema)
    scratch.unlink()
    options = {"num_bits": RQ_BITS} if kind == "IVF_RQ" else {}
    centroids = np.ascontiguousarray(view.centroids, dtype=np.float32)
    table.create_index(
        VECTOR, kind, metric=METRIC, num_partitions=view.nlist, ivf_centroids=centroids, **options
    )


class LanceDb:
    """A table of LanceDB. `batched`: a call for each window; else for each query. `refine`: rows
    re-ranked, times top_k.
    """

    def __init__(self, name: str, *, kind: Kind, batched: bool) -> None:
        self.name = name
        self._kind = kind
        self._batched = batched
        self._table: Any = None
        self._nprobe = 0
        self._top_k = 0

    def open(self, dataset: Dataset, limits: Limits) -> None:
        """Opens the table; its cache takes what the limit leaves beside the process. Raises
        `ConfigError` without LanceDB.
        """
        os.environ["LANCE_CPU_THREADS"] = str(limits.threads)  # read once, when it is imported
        lancedb = _load("lancedb")
        session = None
        if limits.memory_bytes is not None:
            session = lancedb.Session(
                index_cache_size_bytes=index_cache_bytes(limits.memory_bytes),
                metadata_cache_size_bytes=METADATA_CACHE_BYTES,
            )
        folder = dataset.prepared_dir / preparation_name(self._kind)
        self._table = lancedb.connect(str(folder), session=session).open_table(TABLE)
        self._nprobe = dataset.probes.shape[1]
        self._top_k = dataset.top_k

    def run(self, arrivals: Arrivals) -> Iterator[Result]:
        """Answers each window by one call of LanceDB, or each query by one."""
        while not arrivals.ended:
            window = arrivals.take()
            if window is None:
                continue
            batches = [window.queries] if self._batched else [(query,) for query in window.queries]
            for batch in batches:
                found = self._search(batch)
                now_us = arrivals.now_us()
                for query, ids in zip(batch, found, strict=True):
                    yield Result(now_us, query.number, 0, ids, True)

    def _search(self, batch: Sequence[Query]) -> list[Int64]:
        """Row numbers of each query, best first."""
        vectors = [query.vector for query in batch]
        asked = self._table.search(
            vectors if len(vectors) > 1 else vectors[0], vector_column_name=VECTOR
        )
        asked = (
            asked.distance_type(METRIC)
            .nprobes(self._nprobe)
            .limit(self._top_k)
            .select([ROW, "_distance"])
        )
        if self._kind == "IVF_RQ":
            asked = asked.refine_factor(REFINE_FACTOR)
        return split_answer(asked.to_arrow(), len(vectors))

    def counters(self) -> Counters:
        """Returns nothing: LanceDB says nothing of its reads, and the kernel counts them."""
        return Counters()

    def close(self) -> None:
        """Lets go of the table."""
        self._table = None


def split_answer(answer: Any, queries: int) -> list[Int64]:
    """Returns the row numbers of each of `queries` from an Arrow table, best first; `query_index`
    says whose each row is.
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
    """Returns what LanceDB may keep of its index in a process that may take `memory_bytes`.

    With less, it would read more than it must; with more, the kernel would have no pages left to
    read through.
    """
    return max(INDEX_CACHE_BYTES_MIN, memory_bytes - PROCESS_BYTES - METADATA_CACHE_BYTES)


def preparation_name(kind: Kind) -> str:
    """Returns the folder of the table with an index of `kind`."""
    return f"lancedb-{kind.lower().replace('_', '-')}"


def _preparation(kind: Kind) -> Preparation:
    return Preparation(
        name=preparation_name(kind), make=lambda dataset, folder: make_table(dataset, folder, kind)
    )


def _maker(name: str, *, kind: Kind, batched: bool) -> Callable[[], Contestant]:
    return lambda: LanceDb(name, kind=kind, batched=batched)


def _entry(
    name: str, summary: str, *, kind: Kind, batched: bool, preparation: Preparation
) -> Entry:
    return Entry(
        name=name,
        summary=summary,
        is_exact=kind == "IVF_FLAT",
        make=_maker(name, kind=kind, batched=batched),
        preparation=preparation,
    )


_FLAT, _RQ = _preparation("IVF_FLAT"), _preparation("IVF_RQ")
_RQ_TEXT = f"LanceDB IVF_RQ, {RQ_BITS} bit, refine {REFINE_FACTOR}"
ENTRIES = (
    _entry(
        "lancedb-flat",
        "LanceDB IVF_FLAT, a call for each query",
        kind="IVF_FLAT",
        batched=False,
        preparation=_FLAT,
    ),
    _entry(
        "lancedb-flat-batched",
        "LanceDB IVF_FLAT, a call for each window",
        kind="IVF_FLAT",
        batched=True,
        preparation=_FLAT,
    ),
    _entry(
        "lancedb-rq",
        f"{_RQ_TEXT}, a call for each query",
        kind="IVF_RQ",
        batched=False,
        preparation=_RQ,
    ),
    _entry(
        "lancedb-rq-batched",
        f"{_RQ_TEXT}, a call for each window",
        kind="IVF_RQ",
        batched=True,
        preparation=_RQ,
    ),
)
