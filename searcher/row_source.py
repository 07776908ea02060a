"""The interface of sources of rows: they scan clusters, and propose rows that are then scored.

A cluster is scanned by the first source that has it. The executor gets vectors and clusters of the
proposed rows from a `RowReader`; who makes the record gets their passages from a `PassageReader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from carpool.arrays import Float32, Int64
from carpool.codes.row_mask import RowMask
from carpool.errors import ReadError
from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.executor import SearchGroup


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scan:
    """The query `key` is to be scanned over `clusters`, nearest first.

    `vector`: (dim,) float32; `count`: how many rows are to be proposed.
    """

    key: int
    vector: Float32
    clusters: Sequence[ClusterId]
    count: int


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

    def advance(self, mask: RowMask | None, *, may_scan: bool) -> Sequence[Scanned]:
        """Does what can be done now, and returns the scans that have ended. Does not block.

        `mask`: the rows that scans may find; None: all. Without `may_scan`, only reads go on.
        """
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong."""
        ...

    def close(self) -> None:
        """Ends its threads. Blocks for up to half a second."""
        ...
