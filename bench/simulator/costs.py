"""What computing takes on virtual time: scoring, what is done around it, and verifying what was
read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Task(NamedTuple):
    """A cluster that is scored: its rows, the pieces of memory in which they lie, and for how many
    queries.
    """

    rows: int
    pieces: int
    queries: int


class ComputeCosts(msgspec.Struct, frozen=True, kw_only=True):
    """All measured on the machine that is to be simulated, by windows of their own; microseconds
    but for two.

    Scoring, on as many threads as there will be: `cluster_us` for a cluster, `piece_us` for each
    piece of memory it lies in, `row_ns` for a row (it comes from memory, whoever wants it),
    `product_ns` for a row and a query.

    Around it, on the search thread: `turn_us` for a sub-stage, or for a cluster query by query:
    plans, merging, books, answers; `join_us` to take in a window; `read_us` to hand a cluster's
    read to the store; `wake_us` until a thread that sleeps goes on; `arrival_us` from the last
    answer to the next window, in a closed loop.

    On the engine's thread, which does nothing else meanwhile: `handover_us` before it goes on while
    the search thread computes (the interpreter runs one thread at a time, and the other one rarely
    lets go of it); `block_us` for a block that was read, `verify_ns` for a KiB of it,
    `block_piece_us` for each piece of memory that it lies in.
    """

    cluster_us: float = 30.0
    piece_us: float = 10.0
    row_ns: float = 100.0
    product_ns: float = 10.0
    turn_us: float = 300.0
    join_us: float = 500.0
    read_us: float = 50.0
    wake_us: float = 50.0
    arrival_us: float = 100.0
    handover_us: float = 300.0
    block_us: float = 20.0
    verify_ns: float = 150.0
    block_piece_us: float = 7.0

    def scoring_us(self, tasks: Iterable[Task]) -> float:
        """Returns how long it takes to score a sub-stage."""
        return sum(
            self.cluster_us
            + task.pieces * self.piece_us
            + task.rows * (self.row_ns + task.queries * self.product_ns) / 1_000
            for task in tasks
        )

    def verifying_us(self, size_bytes: int, pieces: int) -> float:
        """Returns how long the engine's thread is busy with a block that has come."""
        return (
            self.block_us
            + pieces * self.block_piece_us
            + size_bytes / 1024 * self.verify_ns / 1_000
        )
