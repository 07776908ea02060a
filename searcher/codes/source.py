"""The interface of codes: which parts of which queries can be scanned now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from carpool.arrays import Int64
from carpool.codes.int4 import CodeScanner
from carpool.errors import ReadError
from schemas.record import ClusterId

NONE = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScanPart:
    """The query `keys[i]` can be scanned over `clusters[i]`, which it wants: (n,) each.

    `errors`: a query, a cluster that it wants and that is not scanned, and why. `bytes_read`: of
    codes, which count for one of the queries.
    """

    keys: Int64
    clusters: Int64
    errors: Sequence[tuple[int, ClusterId, ReadError]] = ()
    bytes_read: int = 0


class CodeSource(Protocol):
    """Codes for one thread, which calls `advance` again when the executor's waker wakes it.

    `first_rows`, `row_counts`: (nlist,) int64, the first row of each cluster and how many it has.
    """

    scanner: CodeScanner
    first_rows: Int64
    row_counts: Int64

    @property
    def times_out_at_us(self) -> int | None:
        """When a read is given up; None while there is none."""
        ...

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """A window begins. `next_window` says in how many windows a cluster is needed next."""
        ...

    def want(self, key: int, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """Wants a query to be scanned over `clusters`, at least one, nearest first.

        Returns those whose codes are not in memory, and will not be soon.
        """
        ...

    def drop(self, key: int) -> None:
        """Forgets a query; parts of it that `advance` has returned must still be ended."""
        ...

    def advance(self) -> list[ScanPart]:
        """Returns parts that can be scanned now. Does not block.

        Of each query that is wanted, each cluster is once in a part.
        """
        ...

    def end(self, clusters: Int64) -> None:
        """The clusters of a part were scanned, or will not be."""
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong."""
        ...
