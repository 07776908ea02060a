"""The seam of executors: groups of queries go in from any thread, each query comes out of the
search thread when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from carpool.errors import CorruptionError, RetryableError
from schemas.record import ClusterId
from schemas.retrieval import Probe
from searcher.scoring.top_k import TopK

ReadError = CorruptionError | RetryableError


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """One query to search. `key` names it: unique, growing. `vector`: (dim,) float32, normalised;
    `clusters`: C(q), nearest first, without repetition. After `deadline_us` its result is of no
    use.
    """

    key: int
    vector: npt.NDArray[np.float32]
    clusters: tuple[ClusterId, ...]
    top_k: int
    deadline_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchGroup:
    """Queries in search order, and advice on what comes after them.

    `window`: which window they belong to, any value that another window does not have.
    `next_query`: the clusters of the first query of the next group (CaGR-RAG, Eq. 4). `horizon`:
    windows until a cluster is wanted next, 1 the next one.
    """

    searches: tuple[Search, ...]
    window: object = None
    next_query: tuple[ClusterId, ...] = ()
    horizon: Mapping[ClusterId, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What the search of one query found. `skipped`: probed clusters of which something could not
    be scored, and `errors` says why; what could be is in `best`.

    Times in microseconds: `search_us` scored and merged, `load_us` is the rest from `started_us`
    until it was done. `bytes_read`: of the clusters that were read for the sake of this query;
    others may have used them too.
    """

    best: TopK
    probes: tuple[Probe, ...]
    skipped: tuple[ClusterId, ...]
    errors: tuple[ReadError, ...]
    bytes_read: int
    started_us: int
    load_us: int
    search_us: int


Finish = Callable[[Search, SearchResult | None], None]
"""Is called for each search that is done, in any order, on the search thread; None: its deadline
has passed.
"""


class Executor(Protocol):
    """Searches what joins. `run` is for one thread, the search thread; the rest may be called from
    any, and does not block.
    """

    def join(self, group: SearchGroup) -> None:
        """Takes in a group. Its keys are larger than those of any group before."""
        ...

    def drop(self, keys: Collection[int]) -> None:
        """Nobody waits for these any more: they are not finished, unless they are at this very
        moment.
        """
        ...

    def run(self, finish: Finish) -> None:
        """Searches until `stop`; blocks. What it raises is a fault of the executor, not of a
        read.
        """
        ...

    def stop(self) -> None:
        """Lets `run` return soon; what is in hand is not finished."""
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books are wrong. For idle moments: not while `run` is
        at work.
        """
        ...
