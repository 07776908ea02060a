"""How a set of vectors behaves under an IVF search with real questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.evaluation import Float32
from bench.data.grown.sources import Int64
from bench.data.trace import Clustered

NLIST = 100
NPROBES = (5, 10, 20, 32)
TOP_K = 10
WINDOW_QUERIES = 20
WINDOW_NPROBE = 10
WINDOWS = 500
"""Random windows that the mean is over: it is then known to about 0.2 clusters."""
CEILING_TOLERANCE = 0.02
TOUCHED_TOLERANCE = 5.0
CHUNK_ROWS = 16_384
FIRST_CHUNK_ROWS = 1024

OnRows = Callable[[int], None]


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What a search with real questions finds in a set, at some nlist.

    `ceilings`: the share of the exact top 10 in the nprobe nearest clusters, by `nprobes`.
    `touched`: mean number of distinct clusters that 20 random questions probe at nprobe 10.
    """

    row_count: int
    nlist: int
    nprobes: tuple[int, ...]
    ceilings: tuple[float, ...]
    touched: float


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Real and grown side by side, at nlist 100, with the same questions."""

    real: Behaviour
    grown: Behaviour

    @property
    def ceiling_differences(self) -> tuple[float, ...]:
        """Grown less real, by nprobe."""
        return tuple(
            grown - real
            for real, grown in zip(self.real.ceilings, self.grown.ceilings, strict=True)
        )

    @property
    def touched_difference(self) -> float:
        """Grown less real."""
        return self.grown.touched - self.real.touched

    def holds(self) -> bool:
        """Whether every difference is within its tolerance."""
        ceilings = all(abs(each) <= CEILING_TOLERANCE for each in self.ceiling_differences)
        return ceilings and abs(self.touched_difference) <= TOUCHED_TOLERANCE

    def columns(self) -> dict[str, dict[str, str]]:
        """Returns the columns of a table: real, grown, their difference, and what is allowed."""
        names = [f"recall@{TOP_K} at nprobe {nprobe}" for nprobe in self.real.nprobes]
        touched = f"clusters of {WINDOW_QUERIES} questions, nprobe {WINDOW_NPROBE}"

        def column(ceilings: Sequence[float], clusters: float, sign: str = "") -> dict[str, str]:
            found = dict(zip(names, (f"{each:{sign}.4f}" for each in ceilings), strict=True))
            return found | {touched: f"{clusters:{sign}.2f}"}

        return {
            "real": column(self.real.ceilings, self.real.touched),
            "grown": column(self.grown.ceilings, self.grown.touched),
            "difference": column(self.ceiling_differences, self.touched_difference, "+"),
            "allowed": column([CEILING_TOLERANCE] * len(names), TOUCHED_TOLERANCE),
        }


def nearest(path: Path, questions: Float32, on_rows: OnRows = lambda _: None) -> Int64:
    """Returns the rows of the exact top 10 of each question in a .npy file: (n, 10) int64.

    `questions`: (n, dim) float32. Best first; equal scores: the lower row first. Reads the file
    once. Memory: n * 16,384 scores. Blocks.
    """
    count = len(questions)
    scores = np.full((count, TOP_K), -np.inf, dtype=np.float32)
    rows = np.full((count, TOP_K), -1, dtype=np.int64)
    for start, chunk in read_chunks(path):
        found = questions @ chunk.T
        # Only rows that are better than the tenth so far are sorted: after a few chunks very few.
        question, row = np.nonzero(found > scores[:, -1:])
        scores, rows = _merge(scores, rows, question, found[question, row], row + start)
        on_rows(len(chunk))
    return rows


def read_chunks(path: Path) -> Iterator[tuple[int, Float32]]:
    """Yields (first row, (rows, dim) float32, row-normalised) of a .npy file; small chunks first.

    The file is mapped again for every chunk, so that its pages do not count as memory.
    """
    start, size = 0, FIRST_CHUNK_ROWS
    while True:
        chunk = np.load(path, mmap_mode="r", allow_pickle=False)[start : start + size].astype(
            np.float32
        )
        if not len(chunk):
            return
        chunk /= np.linalg.norm(chunk, axis=1, keepdims=True)
        yield start, chunk
        start += size
        size = min(2 * size, CHUNK_ROWS)


def behaviour(
    nearest_rows: Int64,
    clustering: Clustered,
    questions: Float32,
    seed: int,
    nprobes: Sequence[int] = NPROBES,
) -> Behaviour:
    """Returns how a set with these nearest rows, (n, 10), and clusters behaves.

    `seed`: of the windows.
    """
    nlist = len(clustering.centroids)
    order = np.argsort(-(questions @ clustering.centroids.T), axis=1, kind="stable")
    place = np.empty_like(order)  # of each cluster in the order in which a question probes
    np.put_along_axis(place, order, np.broadcast_to(np.arange(nlist), order.shape), axis=1)
    places = np.take_along_axis(place, clustering.clusters[nearest_rows], axis=1)
    return Behaviour(
        row_count=len(clustering.clusters),
        nlist=nlist,
        nprobes=tuple(nprobes),
        ceilings=tuple(float((places < nprobe).mean()) for nprobe in nprobes),
        touched=_touched(order[:, :WINDOW_NPROBE], seed),
    )


def _touched(probes: npt.NDArray[np.int64], seed: int) -> float:
    """Mean number of distinct clusters in random windows; `probes`: (questions, nprobe)."""
    random = np.random.default_rng(seed)
    size = min(WINDOW_QUERIES, len(probes))
    windows = (random.choice(len(probes), size=size, replace=False) for _ in range(WINDOWS))
    return float(np.mean([len(np.unique(probes[window])) for window in windows]))


def _merge(
    scores: Float32, rows: Int64, question: Int64, found: Float32, found_rows: Int64
) -> tuple[Float32, Int64]:
    """The best of the known, (questions, k), and of the found, flat with the question of each."""
    count, top_k = scores.shape
    all_questions = np.concatenate((np.repeat(np.arange(count), top_k), question))
    all_scores = np.concatenate((scores.ravel(), found))
    all_rows = np.concatenate((rows.ravel(), found_rows))
    order = np.lexsort((all_rows, -all_scores, all_questions))
    first = np.searchsorted(all_questions[order], np.arange(count))
    best = order[first[:, None] + np.arange(top_k)]
    return all_scores[best], all_rows[best]
