"""What a sub-stage scores: clusters, each for some of the queries that are asked."""

from __future__ import annotations

from typing import NamedTuple

from carpool.disk.pages import ClusterPages
from searcher.top_k import Float32, Slots

BYTES_PER_PRODUCT = 16
"""Queries whose products with a row cost as much as reading it."""


class Asked(NamedTuple):
    """Queries: `slots` (n,) of a table, each once; `vectors` (n, dim) float32, fastest where (dim, n) is contiguous."""

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


def scoring_cost(size_bytes: int, queries: int) -> int:
    """Returns what it costs to score so many bytes of pages: these, and the products in bytes that could be read meanwhile."""
    return size_bytes * (BYTES_PER_PRODUCT + queries) // BYTES_PER_PRODUCT
