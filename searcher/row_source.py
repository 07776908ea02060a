"""The interfaces of rows: sources propose them, and what they hold is read from where they are.

A cluster is scanned by the first source that has it. The proposed rows are scored by their vectors,
and the best are shown with their passages. A hot shard is a source of rows that are of the index,
so whoever scans and whoever holds rows are different interfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from carpool.arrays import Bool, Float32, Int64
from carpool.codes.row_mask import RowMask
from carpool.disk.documents import Passage
from carpool.errors import ReadError
from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.executor import SearchGroup
from searcher.fresh.rows import FreshView

BATCH_MAX = 100
"""Queries of a scan. More: the first answers come later. Fewer: clusters are read more often."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scan:
    """The query `key` is to be scanned over `clusters`, nearest first.

    `vector`: (dim,) float32; `count`: how many rows are to be proposed. `mask`: those of the index
    that it may find; None: all. `fresh`: the fresh rows that it may find.
    """

    key: int
    vector: Float32
    clusters: Sequence[ClusterId]
    count: int
    mask: RowMask | None = None
    fresh: FreshView | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scanned:
    """A scan has ended.

    `rows` and `estimates`: (n,) int64 and float32, in any order; a row is -1 where there are fewer.
    `errors`: the clusters that could not be scanned, and why. `lacking`: the clusters that another
    source must scan, because this one has failed. `bytes_read`: of codes; what several scans want
    counts for one.
    """

    key: int
    rows: Int64
    estimates: Float32
    took_us: int = 0
    bytes_read: int = 0
    errors: Mapping[ClusterId, ReadError] = field(default_factory=dict)
    lacking: Sequence[ClusterId] = ()


class RowSource(Protocol):
    """Rows that are scanned for one thread, which calls `advance` again when it is woken.

    `codec`: the codec whose margin holds for the estimates (`carpool.codes.margin`).
    """

    @property
    def codec(self) -> str:
        """See the class."""
        ...

    @property
    def times_out_at_us(self) -> int | None:
        """When something is given up; None while there is nothing."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a call of `advance` scans something."""
        ...

    def join(self, group: SearchGroup, *, begins_window: bool) -> None:
        """Queries come, of another window than those before where it begins one."""
        ...

    def take(self, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """Returns those of `clusters` that it has, in their order; a call of `scan` follows."""
        ...

    def scan(self, scan: Scan) -> Mapping[ClusterId, Tier]:
        """Begins a scan of clusters that it took, at least one; the key has no other scan here.

        Returns where the clusters are that are not in memory.
        """
        ...

    def drop(self, key: int) -> None:
        """Forgets the scan of a query; `advance` may return it nevertheless."""
        ...

    def advance(self, *, may_scan: bool) -> Sequence[Scanned]:
        """Does what can be done now, and returns the scans that have ended. Does not block.

        Without `may_scan`, only reads go on.
        """
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong."""
        ...

    def close(self) -> None:
        """Ends its threads. Blocks for up to half a second."""
        ...


class RowsRead(NamedTuple):
    """Vectors of rows, by query.

    `owners`, `rows`: (n,) int64; `vectors`: (n, dim) float32. `failed`: a query, its row that could
    not be read, and why. `bytes_read`: by query; what several queries want counts for one.
    """

    owners: Int64
    rows: Int64
    vectors: Float32
    failed: Sequence[tuple[int, int, ReadError]]
    bytes_read: Mapping[int, int]


class RowVectors(Protocol):
    """The vectors and clusters of rows, for the thread that searches."""

    @property
    def nlist(self) -> int:
        """The number of clusters."""
        ...

    @property
    def waiting(self) -> int:
        """The number of additions that wait for memory."""
        ...

    @property
    def times_out_at_us(self) -> int | None:
        """When a read is given up; None while there is none."""
        ...

    def clusters_of(self, rows: Int64) -> Int64:
        """Returns the cluster of each of `rows`: (n,) int64 -> (n,) int64."""
        ...

    def add(self, owners: Int64, rows: Int64) -> None:
        """Wants `rows` for the queries `owners`, (n,) int64 each, n >= 1."""
        ...

    def advance(self, are_wanted: Callable[[Int64], Bool]) -> Sequence[RowsRead]:
        """Starts reads, and returns what was read since the last call. Does not block.

        `are_wanted` says of which owners rows are still wanted: (n,) int64 -> (n,) bool.
        """
        ...

    def pending(self) -> Mapping[int, int]:
        """Returns how many rows are not read yet, by owner; for tests."""
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong."""
        ...


class RowPassages(Protocol):
    """The passages of rows, for one thread at a time."""

    def read(
        self, results: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, list[Passage] | ReadError]]:
        """Yields the passages of each result, with its position: one for each row, in their order.

        `results`: the rows of each. The first error of a result is yielded instead. Results may
        come in another order. Raises `IndexError` for a row that does not exist. Blocks while it
        reads: at most a time limit longer where the disk hangs, and as many as there are buffers
        where only some reads do.
        """
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where buffers were lost; not during `read`."""
        ...

    def close(self) -> None:
        """Ends the reads. Blocks for up to half a second."""
        ...


def by_identity(masks: Sequence[object]) -> list[list[int]]:
    """Returns the positions of equal objects, together."""
    found: dict[int, list[int]] = {}
    for position, mask in enumerate(masks):
        found.setdefault(id(mask), []).append(position)
    return list(found.values())
