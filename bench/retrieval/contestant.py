"""The seam of `carpool bench search`: what a contestant is given, what it must do, and what it may
say of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class Query(NamedTuple):
    """A query that has arrived. `number`: its row in the data set; `vector`: (dim,) float32,
    normalised; `clusters`: C(q), (nprobe,) int32, nearest first; `arrived_us`: on the clock of the
    run.
    """

    number: int
    vector: Float32
    clusters: Int32
    arrived_us: int


class Window(NamedTuple):
    """Queries that may be planned together. `arrived_us`: when the first of them arrived."""

    number: int
    arrived_us: int
    queries: tuple[Query, ...]


class Result(NamedTuple):
    """An answer to one query. `time_us`: when it was ready, on the clock of the run
    (`Arrivals.now_us`); `ids`: row numbers, (at most top_k,) int64, best first; `revision`: 0 for
    the first answer, drafts count up; exactly one is final.
    """

    time_us: int
    query: int
    revision: int
    ids: Int64
    is_final: bool


class Arrivals(Protocol):
    """Where a contestant takes its queries from. Called from the thread that iterates over `run`;
    not thread-safe.
    """

    def now_us(self) -> int:
        """Returns the clock of the run."""
        ...

    def take(self, timeout_us: int | None = None) -> Window | None:
        """Returns the next window: what has arrived and was not taken, at most as many queries as a
        window holds.

        Waits for `timeout_us` at most, for ever with None. Returns None when nothing came, or when
        nothing will ever come: then `ended` is True. In a closed loop nothing can come while a
        query that was taken is not answered: then it returns None at once, and with `timeout_us`
        None raises `ContestantError`, for it would wait for ever.
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing will arrive any more."""
        ...

    def ahead(self, windows: int) -> tuple[Int32, ...]:
        """Returns the probes of up to `windows` windows that wait behind the one in hand: (queries,
        nprobe) int32 each.

        It stands for the records that wait in Kafka, which the grouper reads ahead. Only
        contestants that say so in their name may use it. In an open loop it knows only what has
        arrived.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is searched, and with what. `queries`: (n, dim) float32, normalised, distinct; `probes`:
    (n, nprobe) int32.

    `prepared_dir` has a folder for each `Preparation`. Clusters are read from `index_dir` by
    whoever needs them.
    """

    index_dir: Path
    prepared_dir: Path
    dimension: int
    nlist: int
    row_count: int
    top_k: int
    queries: Float32
    probes: Int32


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a contestant may take. `memory_bytes`: of its whole process, page cache included, or
    None; `threads`: to compute. `window`: the most queries in a window. `cache_bytes`: of clusters
    in memory, kept or being read; what it takes beside them is then free. None: whatever
    `memory_bytes` leaves.
    """

    memory_bytes: int | None
    threads: int
    window: int
    cache_bytes: int | None = None


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What a contestant counted since it was opened. None: it cannot know (the kernel's counters
    are reported anyway).

    `bytes_read`: from the disk; the run ends with 1 when the kernel says otherwise by over 2 %.
    `disk_busy_us`: time with at least one read outstanding. `cache_bytes`: memory that it has set
    aside for clusters, kept or being read, as it stands; it must be known, and within
    `Limits.cache_bytes`, where there is one. `others`: whatever explains the result, reported as it
    stands.
    """

    bytes_read: int | None = None
    disk_busy_us: int | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    cache_bytes: int | None = None
    others: dict[str, float] = {}


class Contestant(Protocol):
    """A way to search. One object for one run in one process: open, run (several times), close."""

    name: str

    def open(self, dataset: Dataset, limits: Limits) -> None:
        """Gets ready to search; imports what it needs here. Timed and counted. Raises
        `CarpoolError` where it cannot.
        """
        ...

    def run(self, arrivals: Arrivals) -> Iterator[Result]:
        """Yields the results of all that arrives, one final for each query, until
        `arrivals.ended`.
        """
        ...

    def counters(self) -> Counters:
        """Returns what was counted since `open`."""
        ...

    def close(self) -> None:
        """Lets go of everything."""
        ...


class ContestantError(Exception):
    """A contestant broke the rules of the seam: a bug in it, told as a failed cell."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Files that contestants need, made once for each index, outside the measured run, in a process
    without a limit.

    `make(dataset, folder)` writes into an empty folder, which becomes `dataset.prepared_dir / name`
    when it returns.
    """

    name: str
    make: Callable[[Dataset, Path], None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A contestant as it is listed. `make` imports what it needs: listing stays light.

    `is_exact`: it claims the ids of an in-memory IVF-Flat, and is held to it. `is_limited`: it runs
    under the limit. `has_cache_budget`: it keeps to `Limits.cache_bytes`; without that it cannot
    take part where caches are what is limited.
    """

    name: str
    summary: str
    is_exact: bool
    make: Callable[[], Contestant]
    is_limited: bool = True
    has_cache_budget: bool = False
    preparation: Preparation | None = None


Entries = Mapping[str, Entry]
