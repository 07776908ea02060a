"""What a search has found after each cluster, for real questions over real passages.

Clusters are read in one of three orders. `nearest`: the nearest first. `shared`: as the searcher
reads them by default, those first that most questions in progress want. In both a cluster is read
once for all of them. `history`: alone, first those where the most similar earlier question found
something, then those that it searched, then the others (HedraRAG, section 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bench.data.evaluation import Float32
from bench.data.trace import Clustered
from carpool.disk.centroids import probe
from carpool.disk.pages import choose_layout
from searcher.plan.demand import Demand
from searcher.plan.slices import Slice, SliceId

ScanOrder = Literal["nearest", "shared", "history"]
LOCAL_CACHE = 20
"""Results of an earlier question that are kept (HedraRAG, section 4.3)."""
OVERTAKEN_MAX = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The best rows after some clusters of a question, and the share of its bytes that was read."""

    rows: tuple[int, ...]
    scores: tuple[float, ...]
    clusters_done: int
    bytes_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressiveSearch:
    """One question. `found`: after each cluster; the last is the final result."""

    question: int
    found: tuple[Found, ...]

    @property
    def final_at(self) -> float:
        """The share of the bytes after which the best rows and their order never change."""
        final = self.found[-1].rows
        at = 1.0
        for one in reversed(self.found):
            if one.rows != final:
                break
            at = one.bytes_share
        return at


@dataclass(frozen=True, kw_only=True, slots=True)
class Searches:
    """Searches in one order, and the bytes that were read for a question."""

    searches: tuple[ProgressiveSearch, ...]
    bytes_a_question: float


class SearchedCorpus:
    """A clustered corpus and questions: (n, dim) float32 each, row-normalised."""

    def __init__(
        self, corpus: Float32, clustered: Clustered, questions: Float32, *, nprobe: int, top_k: int
    ) -> None:
        self._corpus = corpus
        self._questions = questions
        self._top_k = top_k
        nlist = len(clustered.centroids)
        sizes = np.bincount(clustered.clusters, minlength=nlist).tolist()
        self._rows = [np.flatnonzero(clustered.clusters == number) for number in range(nlist)]
        layout = choose_layout(corpus.shape[1], "float32", sizes)
        self._bytes = [layout.page_count(rows) * layout.page_bytes for rows in sizes]
        self._probed: list[list[int]] = probe(clustered.centroids, questions, nprobe).tolist()
        self._best: list[dict[int, tuple[npt.NDArray[np.int64], Float32]]] = [
            {number: self._score(question, number) for number in probed}
            for question, probed in enumerate(self._probed)
        ]

    def search(self, order: ScanOrder, *, in_progress: int) -> Searches:
        """Returns the searches of all questions, `in_progress` at a time. Takes seconds."""
        orders, read = self._read(in_progress, is_nearest_first=order != "shared")
        cached: list[Sequence[int]] = [()] * len(orders)
        if order == "history":
            orders, cached = self._by_history(), self._local_caches()
        return Searches(
            searches=tuple(
                self._progress(question, clusters, cached[question])
                for question, clusters in enumerate(orders)
            ),
            bytes_a_question=read / len(orders),
        )

    def _score(self, question: int, number: int) -> tuple[npt.NDArray[np.int64], Float32]:
        rows = self._rows[number]
        return best_of(rows, self._corpus[rows] @ self._questions[question], LOCAL_CACHE)

    def _progress(
        self, question: int, clusters: Sequence[int], cached: Sequence[int]
    ) -> ProgressiveSearch:
        rows = np.array(cached, dtype=np.int64)
        scores = self._corpus[rows] @ self._questions[question]
        rows, scores = best_of(rows, scores, self._top_k)
        total = sum(self._bytes[number] for number in clusters)
        done = 0
        found = [_found(rows, scores, 0, 0.0)] if len(rows) else []
        for count, number in enumerate(clusters, 1):
            more_rows, more_scores = self._best[question][number]
            is_new = ~np.isin(more_rows, rows)
            rows, scores = best_of(
                np.concatenate([rows, more_rows[is_new]]),
                np.concatenate([scores, more_scores[is_new]]),
                self._top_k,
            )
            done += self._bytes[number]
            found.append(_found(rows, scores, count, done / total))
        return ProgressiveSearch(question=question, found=tuple(found))

    def _read(self, at_once: int, *, is_nearest_first: bool) -> tuple[list[list[int]], int]:
        """Reads clusters for `at_once` questions at a time, and keeps none of them.

        Returns the order in which each question's clusters came, and the bytes that were read.
        """
        slices = [Slice(SliceId(number), size) for number, size in enumerate(self._bytes)]
        demand = Demand(overtaken_max=OVERTAKEN_MAX)
        orders: list[list[int]] = [[] for _ in self._probed]
        coming = iter(range(len(self._probed)))
        in_progress = read = 0
        while True:
            while in_progress < at_once and (question := next(coming, None)) is not None:
                wants = [slices[number] for number in self._probed[question]]
                demand.add(question, wants, None, wants, is_nearest_first=is_nearest_first)
                in_progress += 1
            following = demand.next_slice()
            if following is None:
                return orders, read
            one = following[0]
            queries = tuple(one.wanted_by)
            demand.fetched(one)
            read += one.size_bytes
            for question in queries:
                orders[question].append(int(one.id))
            in_progress -= len(demand.scored(one, queries))

    def _earlier(self) -> Iterator[int | None]:
        yield None
        for question in range(1, len(self._questions)):
            yield int(np.argmax(self._questions[:question] @ self._questions[question]))

    def _by_history(self) -> list[list[int]]:
        orders = []
        for question, earlier in enumerate(self._earlier()):
            probed = self._probed[question]
            if earlier is None:
                orders.append(probed)
                continue
            found, searched = set(self._result_clusters(earlier)), set(self._probed[earlier])
            orders.append(by_history(probed, found, searched))
        return orders

    def _result_clusters(self, question: int) -> list[int]:
        return [number for number, _ in self._results(question)]

    def _results(self, question: int) -> list[tuple[int, int]]:
        """Returns cluster and row of the best `LOCAL_CACHE` rows of a question."""
        best = self._best[question]
        numbers = np.concatenate([np.full(len(rows), n) for n, (rows, _) in best.items()])
        rows = np.concatenate([rows for rows, _ in best.values()])
        scores = np.concatenate([scores for _, scores in best.values()])
        top = np.argsort(-scores, kind="stable")[:LOCAL_CACHE]
        return list(zip(numbers[top].tolist(), rows[top].tolist(), strict=True))

    def _local_caches(self) -> list[Sequence[int]]:
        return [
            () if earlier is None else [row for _, row in self._results(earlier)]
            for earlier in self._earlier()
        ]


def by_history(probed: Sequence[int], found: set[int], searched: set[int]) -> list[int]:
    """Returns the clusters of a question, given where an earlier one found and searched."""

    def part(number: int) -> int:
        return 0 if number in found else 1 if number in searched else 2

    return sorted(probed, key=part)


def best_of(
    rows: npt.NDArray[np.int64], scores: Float32, top_k: int
) -> tuple[npt.NDArray[np.int64], Float32]:
    """Returns the best rows and their scores, by score and then by row."""
    top = np.lexsort((rows, -scores))[:top_k]
    return rows[top], scores[top]


def _found(
    rows: npt.NDArray[np.int64], scores: Float32, clusters_done: int, bytes_share: float
) -> Found:
    return Found(
        rows=tuple(rows.tolist()),
        scores=tuple(scores.tolist()),
        clusters_done=clusters_done,
        bytes_share=bytes_share,
    )


def final_passages(searches: Sequence[ProgressiveSearch]) -> dict[str, tuple[str, ...]]:
    """Returns the final passages of each question, as a prompt has them."""
    return {str(one.question): passages_of(one.found[-1]) for one in searches}


def passages_of(found: Found) -> tuple[str, ...]:
    """Returns the ids of the passages of a draft."""
    return tuple(map(str, found.rows))
