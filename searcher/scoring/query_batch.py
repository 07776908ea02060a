"""What a sub-stage scores: clusters, each for some of the queries that are asked."""

from __future__ import annotations

from typing import NamedTuple

from carpool.disk.pages import ClusterPages
from searcher.scoring.top_k import Float32, Slots

BYTES_PER_PRODUCT = 16
"""Queries whose products with a row cost as much as reading it."""


class QueryBatch(NamedTuple):
    """Queries: `slots` (n,) of a table, each once; `vectors` (n, dim) float32, fastest where (dim,
    n) is contiguous.
    """

    slots: Slots
    vectors: Float32


class Scoring(NamedTuple):
    """A cluster, and which of those asked want it: `members` (q,), each once, q >= 1."""

    pages: ClusterPages
    members: Slots

    @property
    def size_bytes(self) -> int:
        """Of the pages."""
        return sum(piece.nbytes for piece in self.pages.pieces)

    @property
    def cost(self) -> int:
        """What it costs to score: the bytes of the rows, and the products in bytes that could be
        read meanwhile.
        """
        row_bytes = self.pages.row_count * self.pages.layout.row_bytes
        return row_bytes * (BYTES_PER_PRODUCT + len(self.members)) // BYTES_PER_PRODUCT
