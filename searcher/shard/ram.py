"""A hot shard in memory, scanned by FAISS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carpool.codes.faiss_codes import CodeScanner, Encoder, code_layout, return_freed_memory
from schemas.record import ClusterId
from searcher.shard.device import Float32, Int64, ShardFullError, ShardNumbers, Vectors

ID_BYTES = 8
"""What FAISS keeps for each row beside its code."""


class RamShard:
    """Implements `ShardDevice`. Hardly faster than codes in memory: for trials without a GPU.

    Beside its budget FAISS keeps 8 bytes a row of each cluster that was loaded once and has left:
    at most 1 % of float16 vectors of 384 dimensions, 2 % of `sq8`.
    """

    def __init__(
        self, numbers: ShardNumbers, *, nlist: int, rotation: Float32, bytes_max: int
    ) -> None:
        """`nlist`: of the index; `rotation`: of its codes, (dim, dim) float32.

        `bytes_max`: of all that is loaded.
        """
        return_freed_memory()
        self.codec: str = numbers
        dimension = len(rotation)
        layout = code_layout("flat" if numbers == "float16" else numbers, dimension, "float16")
        self._layout = layout
        # These codecs depend on no centroid.
        self._encoder = Encoder(layout, np.zeros((1, dimension), np.float32), rotation)
        # The scanner reads them when a cluster is loaded.
        self._first_rows, self._row_counts = np.zeros((2, nlist), np.int64)
        self._scanner = CodeScanner(
            layout,
            np.zeros((nlist, dimension), np.float32),
            rotation,
            self._first_rows,
            self._row_counts,
        )
        self.capacity_bytes = self._free_bytes = bytes_max

    def size_bytes(self, row_count: int) -> int:
        """Returns what a cluster of `row_count` rows takes: its codes, and 8 bytes a row."""
        return self._layout.size_bytes(row_count) + row_count * ID_BYTES

    def load(self, cluster: ClusterId, first_row: int, vectors: Vectors) -> None:
        """As `ShardDevice.load`."""
        size_bytes = self.size_bytes(len(vectors))
        if size_bytes > self._free_bytes:
            raise ShardFullError(
                f"cluster {cluster} takes {size_bytes} bytes of the shard, and "
                f"{self._free_bytes} are free; drop other clusters first"
            )
        self._first_rows[cluster], self._row_counts[cluster] = first_row, len(vectors)
        codes = self._encoder.encode(0, vectors)
        self._scanner.load(cluster, np.frombuffer(codes, np.uint8))
        self._free_bytes -= size_bytes

    def drop(self, cluster: ClusterId) -> None:
        """As `ShardDevice.drop`."""
        self._scanner.drop(cluster)
        self._free_bytes += self.size_bytes(int(self._row_counts[cluster]))
        self._row_counts[cluster] = 0

    def scan(self, queries: Float32, probes: Sequence[Int64], count: int) -> tuple[Int64, Float32]:
        """As `ShardDevice.scan`. Uses as many threads as OpenMP is set to."""
        if not any(len(clusters) for clusters in probes):
            shape = len(queries), count
            return np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32)
        return self._scanner.scan(queries, probes, count)

    def close(self) -> None:
        """Frees all clusters."""
        del self._scanner
