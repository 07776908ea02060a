"""The interface of devices that hold whole clusters and scan them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64
from carpool.codes.row_mask import RowMask
from carpool.errors import RetryableError
from schemas.record import ClusterId

Vectors = npt.NDArray[np.floating]
"""As the index stores them: float32 or float16."""

ShardNumbers = Literal["float16", "sq8"]
"""How a device stores a number of a vector: in 2 bytes or in 1."""


class ShardFullError(RetryableError):
    """A cluster does not fit what is free on the device."""


class ShardDevice(Protocol):
    """Clusters on a device.

    `codec`: the codec whose margin holds for the estimates (`carpool.codes.margin`).
    `capacity_bytes`: what clusters may take together, each the `size_bytes` of its rows.

    One thread loads and drops, and another thread scans at the same time. A cluster is scanned only
    after `load` has returned, and dropped only if no scan uses it; the caller sees to both.
    """

    codec: str
    capacity_bytes: int

    def size_bytes(self, row_count: int) -> int:
        """Returns what a cluster of `row_count` rows takes of the device's memory."""
        ...

    def load(self, cluster: ClusterId, first_row: int, vectors: Vectors) -> None:
        """Takes over a copy of a cluster: (n, dim), rows `first_row` to `first_row` + n.

        Blocks until the cluster can be scanned. Raises `ShardFullError` and changes nothing where
        it does not fit. Any other error means that the device cannot be used any more.
        """
        ...

    def drop(self, cluster: ClusterId) -> None:
        """Frees the memory of a cluster that was loaded."""
        ...

    def scan(
        self,
        queries: Float32,
        probes: Sequence[Int64],
        count: int,
        mask: RowMask | None = None,
    ) -> tuple[Int64, Float32]:
        """Returns the rows with the best estimated scores of each query, and the estimates.

        `queries`: (n, dim) float32; `probes`: n arrays, the clusters of each query, of any number,
        no cluster twice, all loaded. `mask`: the rows that may be found; None: all. Returns
        (n, count) int64, -1 where there are fewer such rows, and (n, count) float32, best first.
        Blocks, and releases the GIL. Any error means that the device cannot be used any more.
        """
        ...

    def close(self) -> None:
        """Frees the device."""
        ...
