"""The interface of scoring kernels, and its arguments: clusters and batches of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from searcher.scoring.top_k import Float32, Slots

BYTES_PER_PRODUCT = 16
"""The product of a row with this many queries costs as much as reading the row from memory."""


class PreparedQueries(Protocol):
    """Queries in the form in which a kernel multiplies them. Thread-safe."""

    def write(self, parts: Sequence[UInt8], scores: Float32) -> None:
        """Writes the scores of the rows of `parts` into the first rows of `scores`.

        `parts`: pages of one or several clusters, (n, page_bytes) each; `scores`: (rows, q). Rows
        of a page that are not in use count as rows; their scores mean nothing.
        """
        ...


class ScoringKernel(Protocol):
    """Scores rows in the form in which pages store them. One kernel for each codec of an index."""

    def prepare(self, layout: PageLayout, queries: Float32) -> PreparedQueries:
        """Returns `queries`, (q, dim) float32 with q >= 1, for pages of `layout`.

        Raises `ValueError` for another dimension.
        """
        ...


class QueryBatch(NamedTuple):
    """Queries: `slots` (n,) of a `TopTable`, each once; `vectors` (n, dim) float32.

    Scoring is fastest where `vectors` is stored as (dim, n) contiguous.
    """

    slots: Slots
    vectors: Float32

    def take(self, members: Slots) -> QueryBatch:
        """Returns some of the queries, in the layout that is scored fastest."""
        return QueryBatch(self.slots[members], np.take(self.vectors.T, members, axis=1).T)


class Scoring(NamedTuple):
    """A cluster and the queries that want it: `members` (q,), positions in a batch, each once."""

    pages: ClusterPages
    members: Slots

    @property
    def size_bytes(self) -> int:
        """Bytes of the pages."""
        return sum(piece.nbytes for piece in self.pages.pieces)

    @property
    def cost(self) -> int:
        """The cost of scoring, in bytes that could be read from memory in the same time."""
        row_bytes = self.pages.row_count * self.pages.layout.row_bytes
        return row_bytes * (BYTES_PER_PRODUCT + len(self.members)) // BYTES_PER_PRODUCT
