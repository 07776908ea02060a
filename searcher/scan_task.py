"""A scan: what is scanned for which queries, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from schemas.record import ClusterId

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class Scanner(Protocol):
    """Scans clusters that it has: codes in memory, or a hot shard."""

    def scan(self, queries: Float32, probes: Sequence[Int64], count: int) -> tuple[Int64, Float32]:
        """Returns the `count` best rows of each query, -1 where there are fewer, and estimates."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanTask:
    """The query `key` is to be scanned over `clusters`; `count`: rows to propose."""

    key: int
    vector: Float32
    clusters: tuple[ClusterId, ...]
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Scanned:
    """A scan by `scanner` has ended.

    `rows` and `estimates`: (len(tasks), n), best first; a row is -1 where there are fewer.
    """

    scanner: Scanner
    tasks: tuple[ScanTask, ...]
    rows: Int64
    estimates: Float32
    took_us: int
    error: Exception | None = None


def run_scan(scanner: Scanner, tasks: tuple[ScanTask, ...], clock: Clock) -> Scanned:
    """Scans on this thread, and returns what was found, or the error. Blocks."""
    began_us = clock.now_us()
    rows, estimates, error = np.empty((0, 0), np.int64), np.empty((0, 0), np.float32), None
    try:
        rows, estimates = scanner.scan(
            np.stack([task.vector for task in tasks]),
            [np.array(task.clusters, np.int64) for task in tasks],
            max(task.count for task in tasks),
        )
    except Exception as caught:  # whatever it is, the search thread decides what it means
        error = caught
    return Scanned(
        scanner=scanner,
        tasks=tasks,
        rows=rows,
        estimates=estimates,
        took_us=clock.now_us() - began_us,
        error=error,
    )
