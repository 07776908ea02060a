"""The seam of `carpool bench search`: what a contestant gets and does."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.arrays import Float32, Int64

TOP_K = 10
CHUNK_ROWS = 50_000
THREADS = len(os.sched_getaffinity(0))
"""To compute with: as many as cores."""


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """What is searched. `corpus` has the documents, `vectors` the (rows, dim) floats of them.

    `prepared` is the contestant's own folder. `index` is one of Carpool that is there, else it
    builds one. The run does not judge the questions `tuning`, (n, dim) float32; a hot shard is
    chosen from them. `memory_bytes` limits the whole process, page cache included; None: no limit.
    """

    corpus: Path
    vectors: Path
    prepared: Path
    tuning: Float32
    index: Path | None = None
    memory_bytes: int | None = None


class Contestant(ABC):
    """A way to search. One object for one run in one process.

    `settings` are values of its own knob, ascending; a larger one finds as much or more.
    """

    settings: tuple[int, ...] = ()

    @abstractmethod
    def build(self, data: SearchData) -> None:
        """Writes its files into `data.prepared`, which is empty. Timed."""

    @abstractmethod
    def open(self, data: SearchData) -> None:
        """Prepares to search what was built; not timed. Raises `CarpoolError` where it cannot."""

    @abstractmethod
    def search(self, queries: Float32, setting: int) -> Int64:
        """Returns the rows of each query, (n, TOP_K) int64, best first, -1 where there are none.

        `queries`: (n, dim) float32, normalised. Blocks. Threads may call it at the same time.
        """

    def close(self) -> None:  # noqa: B027
        """Ends its threads."""


def ladder(low: int, high: int) -> tuple[int, ...]:
    """Returns numbers from `low` to `high`, each about a twelfth more than the last."""
    found = [low]
    while found[-1] < high:
        found.append(min(high, max(found[-1] + 1, found[-1] * 13 // 12)))
    return tuple(found)


def shape_of(vectors: Path) -> tuple[int, int]:
    """Returns rows and dimension of a .npy file."""
    count, dimension = np.load(vectors, mmap_mode="r", allow_pickle=False).shape
    return count, dimension


def chunks_of(vectors: Path) -> Iterator[tuple[int, Float32]]:
    """Yields the rows of a .npy file in chunks, (n, dim) float32, each with its first number."""
    stored = np.load(vectors, mmap_mode="r", allow_pickle=False)
    for start in range(0, len(stored), CHUNK_ROWS):
        yield start, np.ascontiguousarray(stored[start : start + CHUNK_ROWS], "<f4")


def sample_of(vectors: Path, count: int) -> Float32:
    """Returns random rows of a .npy file, at most `count`: (n, dim) float32."""
    stored = np.load(vectors, mmap_mode="r", allow_pickle=False)
    rows = np.random.default_rng(0).permutation(len(stored))[:count]
    return np.ascontiguousarray(stored[np.sort(rows)], "<f4")
