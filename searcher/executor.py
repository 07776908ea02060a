"""The interface of executors: they search groups and return each query when it is done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from carpool.arrays import Float32
from carpool.codes.row_mask import RowMask
from carpool.disk.documents import Passage
from carpool.errors import ReadError
from schemas.query import SearchMode
from schemas.record import ClusterId
from schemas.retrieval import Hit, Probe
from searcher.fresh.rows import FreshView
from searcher.scoring.top_k import TopK
from searcher.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchDraft:
    """What a search has found so far: the `best` in `clusters_done` of its `clusters_total`."""

    best: TopK
    clusters_done: int
    clusters_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftWish:
    """A search that has more than `after_us` to go reads the nearest clusters first.

    `send` then gets a draft after each cluster, on the search thread.
    """

    after_us: int
    send: Callable[[SearchDraft], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """One query to search. `key` is unique, and keys grow.

    `vector`: (dim,) float32, normalised; `clusters`: C(q), nearest first, without repetition. After
    `deadline_us` the result is of no use. `mode`: what is promised of the result. `drafts`: of
    exact searches; others have none, because codes are scanned at once. `snapshot`: what it sees;
    None: all rows of the index, and no others.
    """

    key: int
    vector: Float32
    clusters: tuple[ClusterId, ...]
    top_k: int
    deadline_us: int | None = None
    mode: SearchMode = "default"
    drafts: DraftWish | None = None
    snapshot: Snapshot | None = None

    @property
    def mask(self) -> RowMask | None:
        """The rows of the index that it may find; None: all."""
        return None if self.snapshot is None else self.snapshot.mask

    @property
    def fresh(self) -> FreshView | None:
        """The fresh rows that it may find; None: there are none."""
        return None if self.snapshot is None else self.snapshot.fresh


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchGroup:
    """Queries in search order, and advice on what comes after them.

    `window` is any value that differs between windows. `horizon` says in how many windows a cluster
    is needed next; 1: in the next one. `is_next`: it is of the next group of the window instead.
    """

    searches: tuple[Search, ...]
    window: object = None
    horizon: Mapping[ClusterId, int] = field(default_factory=dict)
    is_next: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """The result of one query. `skipped`: clusters that were not scored completely; see `errors`.

    Times in microseconds: `search_us` scored and merged; `load_us` is the rest of the time from
    `started_us` to the end. `bytes_read` counts the clusters or rows that were read for this query;
    other queries may have used them too. `mode` is what is promised, "exact" where an index has no
    codes. `rows_read` counts rows whose exact scores were computed one by one, 0 in an exact
    search. A result of several searches (`together`) has the rows of each in `counts`.
    """

    best: TopK
    probes: tuple[Probe, ...]
    skipped: tuple[ClusterId, ...]
    errors: tuple[ReadError, ...]
    bytes_read: int
    started_us: int
    load_us: int
    search_us: int
    mode: SearchMode = "exact"
    rows_read: int = 0
    counts: tuple[int, ...] = ()


def together(results: Sequence[SearchResult]) -> SearchResult:
    """Returns one result of searches that ran side by side."""
    if len(results) == 1:
        return results[0]
    return replace(
        results[0],
        best=TopK(
            rows=np.concatenate([each.best.rows for each in results]),
            scores=np.concatenate([each.best.scores for each in results]),
            clusters=np.concatenate([each.best.clusters for each in results]),
        ),
        probes=tuple({probe.cluster: probe for one in results for probe in one.probes}.values()),
        skipped=tuple(dict.fromkeys(cluster for one in results for cluster in one.skipped)),
        errors=tuple(error for one in results for error in one.errors),
        bytes_read=sum(one.bytes_read for one in results),
        load_us=max(one.load_us for one in results),
        search_us=sum(one.search_us for one in results),
        rows_read=sum(one.rows_read for one in results),
        counts=tuple(len(one.best.rows) for one in results),
    )


def hits_of(best: TopK, passages: Sequence[Passage]) -> tuple[Hit, ...]:
    """Returns `passages`, those of the rows of `best` in order, as hits."""
    ranked = zip(passages, best.scores.tolist(), best.clusters.tolist(), strict=True)
    return tuple(
        Hit(
            doc_id=passage.doc_id,
            score=score,
            cluster=ClusterId(cluster),
            title=passage.title,
            text=passage.text,
            metadata=passage.metadata,
        )
        for passage, score, cluster in ranked
    )


Finish = Callable[[Search, SearchResult | None], None]
"""Called for each search that is done, in any order, on the search thread; None: it has expired."""


class Executor(Protocol):
    """Searches groups. `run` is for the search thread; the rest is for any thread, and does not
    block.
    """

    def join(self, group: SearchGroup) -> None:
        """Adds a group. Its keys are larger than those of all earlier groups."""
        ...

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches; one that ends at this moment may still be finished."""
        ...

    def run(self, finish: Finish) -> None:
        """Searches until `stop`; blocks. An exception is a defect, not an error of a read."""
        ...

    def stop(self) -> None:
        """Makes `run` return soon; searches in progress are not finished."""
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong. Not for use while `run` searches."""
        ...
