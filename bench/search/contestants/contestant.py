"""The seam of `carpool bench search`: what a contestant gets, does, and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

WINDOWS_AHEAD = 4
"""Windows that the grouper reads ahead by default."""


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
    each contestant that prepares one.
    """

    index_dir: Path
    prepared_dir: Path
    top_k: int
    queries: Float32
    probes: Int32
    earlier: Float32
    earlier_probes: Int32


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a contestant may use.

    `memory_bytes`: of its whole process, page cache included; None: no limit. `threads`: to compute
    with. `window`: queries in a window.
    """

    memory_bytes: int | None
    threads: int
    window: int


class Contestant(Protocol):
    """A way to search. One object for one run in one process."""

    def open(self, data: SearchData, limits: Limits) -> None:
        """Prepares to search. Timed and counted. Raises `CarpoolError` where it cannot."""
        ...

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Yields the answer to each query of `window` as soon as it is known. Blocks."""
        ...

    def bytes_read(self) -> int | None:
        """Returns what it counted since `open`; None: it does not count."""
        ...

    def close(self) -> None:
        """Frees everything."""
        ...


class ContestantError(Exception):
    """A contestant broke a rule of the seam. The report shows a failed cell."""


@dataclass(frozen=True, kw_only=True)
class ContestantEntry:
    """A contestant. `make` imports what it needs.

    `is_exact`: it finds the best rows of the probed clusters. `is_limited`: it runs under the
    memory limit. `needs`: what Carpool does not bring; it takes part only where it is named.
    `prepare(data, folder)` writes files that it needs into an empty folder, once for each index,
    outside the measured run; the folder becomes `data.prepared_dir / name`.
    """

    name: str
    is_exact: bool
    make: Callable[[], Contestant]
    is_limited: bool = True
    needs: str = ""
    prepare: Callable[[SearchData, Path], None] | None = None
