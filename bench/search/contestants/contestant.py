"""The seam of `carpool bench search`: what a contestant gets and does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

TOP_K = 10
WINDOWS_AHEAD = 4
"""Windows that the grouper reads ahead by default."""
THREADS = len(os.sched_getaffinity(0))
"""To compute with: as many as cores."""


class AskedWindow(NamedTuple):
    """Queries that arrived together.

    `first`: the number of the first one; `vectors`: (n, dim) float32, normalised; `probes`: (n,
    nprobe) int32, nearest cluster first. `ahead`: the probes of the next few windows, which wait in
    Kafka.
    """

    first: int
    vectors: Float32
    probes: Int32
    ahead: tuple[Int32, ...]


class FoundRows(NamedTuple):
    """The answer to the query `number`: `rows`, (at most top_k,) int64, best first."""

    number: int
    rows: Int64


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """What is searched, and the queries in the order of their arrival.

    `queries`: (n, dim) float32, normalised, distinct; `probes`: (n, nprobe) int32. `earlier` and
    `earlier_probes`: the same for questions that the run does not ask. A hot shard is chosen from
    them, as a searcher chooses it from the questions in the log. `prepared_dir` has a folder for
    each contestant that prepares one. `memory_bytes`: of the whole process, page cache included;
    None: no limit.
    """

    index_dir: Path
    prepared_dir: Path
    queries: Float32
    probes: Int32
    earlier: Float32
    earlier_probes: Int32
    top_k: int = TOP_K
    memory_bytes: int | None = None


class Contestant(Protocol):
    """A way to search. One object for one run in one process."""

    def open(self, data: SearchData) -> None:
        """Prepares to search; not timed. Raises `CarpoolError` where it cannot."""
        ...

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Yields the answer to each query of `window` as soon as it is known. Blocks."""
        ...

    def close(self) -> None:
        """Frees everything."""
        ...


class ContestantError(Exception):
    """A contestant broke a rule of the seam. The report shows a failed cell."""
