"""Measures which nprobe reaches which recall for the questions that are asked, and stores it.

Half of the questions choose, the other half judges. True results are those of all rows, by one pass
over the index. What is stored is a table: a query that names a `recall_target` gets the row that
promises as much, and one that names nothing the row for `RECALL_DEFAULT`. Where an index probes
all clusters by default, one that names nothing still probes all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64
from carpool.codes.codec import CODEC
from carpool.codes.int4 import CodeScanner
from carpool.codes.margin import COUNT_MAX, first_count, margin, rows_within
from carpool.disk.centroids import probe
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import Manifest, RecallRow, RecallTable, read_manifest, write_manifest
from carpool.disk.pages import PageLayout, dense
from carpool.errors import ConfigError
from indexer.plan.defaults import TARGETS, ceilings, nprobes_for
from indexer.progress import ProgressReport

QUESTIONS_MIN = 100
TOP_K = 10
RECALL_DEFAULT = 0.95
"""What a query gets that names neither nprobe nor a recall, once the index was measured."""
SCAN_QUERIES = 64


@dataclass(frozen=True, kw_only=True)
class _Truth:
    """True results: `scores` and `rows` (questions, TOP_K), best first; `clusters` of the rows."""

    scores: Float32
    rows: Int64
    clusters: Int64


def tune_index(index_dir: Path, questions: Float32, progress: ProgressReport) -> Manifest:
    """Measures an index with `questions` and replaces the table in its manifest. Blocks.

    `questions`: (n, dim) float32, normalised, real questions: passages find themselves, and would
    promise too much. Memory: one cluster, the codes, and 20 KB a question. Raises `ConfigError` for
    too few questions, or where the index was replaced meanwhile; `CorruptionError` where it is
    damaged.
    """
    index = open_index(index_dir)
    try:
        table = _measure(index, _checked(index, questions), progress)
    finally:
        index.close()
    if read_manifest(index_dir) != index.manifest:
        raise ConfigError(
            f"the index at {index_dir} was replaced while it was measured; run the command again"
        )
    nprobe = index.manifest.nprobe_default
    if nprobe < index.manifest.nlist:  # else all codes are scanned, and nothing is to be chosen
        nprobe = table.row_for(RECALL_DEFAULT).nprobe
    tuned = msgspec.structs.replace(index.manifest, recall=table, nprobe_default=nprobe)
    write_manifest(index_dir, tuned)
    return tuned


def _checked(index: OpenIndex, questions: Float32) -> Float32:
    dimension = index.manifest.dimension
    if questions.ndim != 2 or questions.shape[1] != dimension:
        raise ConfigError(
            f"the questions have shape {questions.shape}, and the index has dimension {dimension}: "
            "embed them with the model of the index"
        )
    if not index.manifest.row_count:
        raise ConfigError(f"the index at {index.dir} has no passages: there is nothing to find")
    distinct = np.unique(questions, axis=0)
    if len(distinct) < QUESTIONS_MIN:
        raise ConfigError(
            f"there are {len(distinct)} different questions, and at least {QUESTIONS_MIN} are "
            "needed: half of them choose, and the other half judges. Give more, or wait until more "
            "were asked"
        )
    order = np.random.default_rng(0).permutation(len(distinct))
    return np.ascontiguousarray(distinct[order])


def _measure(index: OpenIndex, questions: Float32, progress: ProgressReport) -> RecallTable:
    nlist = index.manifest.nlist
    truth = _true_results(index, questions, progress)
    order = probe(index.centroids, questions, nlist)
    # Every search scans the zero cluster, as if it were the nearest.
    places = np.zeros((len(order), index.manifest.cluster_count), order.dtype)
    np.put_along_axis(places, order, np.arange(nlist, dtype=order.dtype)[None, :], axis=1)
    ranks = np.take_along_axis(places, truth.clusters, axis=1).astype(np.int64)
    half = len(questions) // 2
    scanner = _scanner(index, progress)
    search = _Search(index=index, scanner=scanner, questions=questions, order=order, truth=truth)
    # The codes miss a little; how much hardly depends on nprobe.
    kept = search.kept(range(half), index.manifest.nprobe_default)
    nprobes = nprobes_for(TARGETS, ceilings(ranks[:half], nlist), kept)
    progress.start("judging rows of the table", len(TARGETS))
    rows = []
    for target, nprobe in zip(TARGETS, nprobes, strict=True):
        rows.append(search.judged(range(half, len(questions)), target, nprobe))
        progress.advance(1)
    return RecallTable(top_k=TOP_K, questions=len(questions), rows=tuple(rows))


def _true_results(index: OpenIndex, questions: Float32, progress: ProgressReport) -> _Truth:
    """The best rows of all, by one pass over the clusters, with one of them in memory."""
    shape = (len(questions), TOP_K)
    best = _Truth(
        scores=np.full(shape, -np.inf, np.float32),
        rows=np.full(shape, -1, np.int64),
        clusters=np.zeros(shape, np.int64),
    )
    progress.start("true results (rows)", index.manifest.row_count)
    for segment in range(index.manifest.segment_count):
        for pages in index.clusters_of(segment):
            found = dense(pages)
            _merge(best, questions @ found.vectors.T, found.rows, pages.cluster)
            progress.advance(pages.row_count)
    return best


def _merge(best: _Truth, new: Float32, rows: Int64, cluster: int) -> None:
    """Enters the scores of a cluster, (questions, n), into the best so far."""
    count = min(TOP_K, new.shape[1])
    if not count:
        return
    taken = np.argpartition(-new, count - 1, axis=1)[:, :count]
    scores = np.concatenate([best.scores, np.take_along_axis(new, taken, axis=1)], axis=1)
    kept = np.argsort(-scores, axis=1, kind="stable")[:, :TOP_K]
    best.scores[:] = np.take_along_axis(scores, kept, axis=1)
    for column, added in ((best.rows, rows[taken]), (best.clusters, np.full(taken.shape, cluster))):
        column[:] = np.take_along_axis(np.concatenate([column, added], axis=1), kept, axis=1)


def _scanner(index: OpenIndex, progress: ProgressReport) -> CodeScanner | None:
    """The codes, in memory; None where the index has none."""
    codes = index.open_codes()
    if codes is None:
        return None
    scanner = CodeScanner(
        codes.layout, index.scan_centroids, codes.rotation, codes.first_rows, codes.row_counts
    )
    progress.start("loading codes (clusters)", len(codes.extents))
    for cluster, extent in enumerate(codes.extents):
        scanner.load(
            cluster, codes.files[extent.segment].read(extent.offset_bytes, extent.size_bytes)
        )
        progress.advance(1)
    return scanner


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Searches questions as the searcher does, but for reading the rows.

    `order`: (questions, nlist) int32, the clusters nearest first.
    """

    index: OpenIndex
    scanner: CodeScanner | None
    questions: Float32
    order: npt.NDArray[np.int32]
    truth: _Truth

    def kept(self, asked: range, nprobe: int) -> float:
        """Returns the share of the true results in the probed clusters that are found."""
        found, there = 0, 0
        for number, rows in zip(asked, self._proposed(asked, nprobe), strict=True):
            in_probes = np.isin(self.truth.clusters[number], self._scanned(number, nprobe))
            true = self.truth.rows[number][in_probes]
            found += len(true) if rows is None else int(np.isin(true, rows).sum())
            there += len(true)
        return found / max(there, 1)

    def judged(self, asked: range, target: float, nprobe: int) -> RecallRow:
        """Returns what a search of `nprobe` clusters reaches for `asked`, and what it costs."""
        began_s = time.process_time()
        proposed = self._proposed(asked, nprobe)
        cpu_us = (time.process_time() - began_s) * 1e6 / len(asked)
        found, row_count, read_bytes = 0, 0, 0
        for number, rows in zip(asked, proposed, strict=True):
            if rows is None:
                probed = self._scanned(number, nprobe)
                found += int(np.isin(self.truth.clusters[number], probed).sum())
                read_bytes += sum(self.index.extents[cluster].size_bytes for cluster in probed)
            else:
                found += int(np.isin(self.truth.rows[number], rows).sum())
                row_count += len(rows)
                read_bytes += pages_bytes(self.index.layout, rows)
        return RecallRow(
            target=target,
            nprobe=nprobe,
            recall=round(found / (len(asked) * TOP_K), 4),
            rows_read=round(row_count / len(asked), 1),
            read_bytes=read_bytes // len(asked),
            cpu_us=round(cpu_us) if self.scanner is not None else None,
        )

    def _scanned(self, number: int, nprobe: int) -> Int64:
        return np.append(self.order[number, :nprobe], self.index.manifest.zero_clusters).astype(
            np.int64
        )

    def _proposed(self, asked: range, nprobe: int) -> list[Int64 | None]:
        """The rows that are read for each question; None where whole clusters are."""
        if self.scanner is None:
            return [None] * len(asked)
        return [
            rows
            for start in range(asked.start, asked.stop, SCAN_QUERIES)
            for rows in self._scan(range(start, min(start + SCAN_QUERIES, asked.stop)), nprobe)
        ]

    def _scan(self, asked: range, nprobe: int) -> list[Int64]:
        assert self.scanner is not None
        width = margin(CODEC, self.index.manifest.dimension)
        found: dict[int, Int64] = {}
        left, count = list(asked), first_count(CODEC, TOP_K)
        while left:
            probes = [self._scanned(number, nprobe) for number in left]
            rows, estimates = self.scanner.scan(self.questions[left], probes, count)
            again = []
            for number, proposed, scores in zip(left, rows, estimates, strict=True):
                taken, has_more = rows_within(scores[proposed >= 0], TOP_K, width)
                if has_more and proposed[-1] >= 0 and count < COUNT_MAX:
                    again.append(number)
                found[number] = proposed[:taken]
            left, count = again, min(COUNT_MAX, 4 * count)
        return [found[number] for number in asked]


def pages_bytes(layout: PageLayout, rows: Int64) -> int:
    """Returns the bytes of the pages of 4 KiB that `rows`, (n,) int64, are in."""
    page, slot = np.divmod(rows, layout.rows_per_page)
    starts = page * layout.page_bytes + slot * layout.row_bytes
    ends = starts + layout.row_bytes - 1
    return int((ends // PAGE_BYTES - starts // PAGE_BYTES + 1).sum()) * PAGE_BYTES
