"""Runs the cells: a block for each seed and window size, each contestant once in a block.

The disk is measured before, amid and after each block, so that ratios compare neighbours.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.baselines.contestant import ContestantEntry, Int32, Limits
from bench.baselines.registry import ENTRIES, REFERENCE
from bench.core.progress import Tell, silent
from bench.data.clusters import open_clusters
from bench.micro.disk import DiskRead, measure_disk
from bench.retrieval import oracles
from bench.retrieval.cells import Cell, DiskBlock, OracleCell, SearchCells
from bench.retrieval.child import (
    EARLIER_NAME,
    EARLIER_PROBES_NAME,
    IDS_NAME,
    PROBES_NAME,
    QUERIES_NAME,
    ChildRequest,
    SearchFiles,
)
from bench.retrieval.exactness import check_exact, recall_of
from bench.retrieval.kernel import drop_page_cache
from bench.retrieval.plan import SearchPlan, check_cache_budgets, order_of
from bench.retrieval.processes import run_child
from bench.retrieval.questions import QuestionVectors, choose_questions
from bench.retrieval.report import cell_line
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import CarpoolError, ConfigError
from searcher.build import SLICE_BYTES_MAX
from searcher.plan.cut import Slices

REFERENCE_NAME = "reference.npz"

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _SeedData:
    """The data of a seed, ready on disk. `unprepared`: why a preparation failed, by its name."""

    seed: int
    view: OpenIndex
    probes: Int32
    files: SearchFiles
    folder: Path
    reads: tuple[DiskRead, ...]
    unprepared: dict[str, str]


class SearchRun:
    """A run of `carpool bench search`. `results` has the cells that are done."""

    def __init__(
        self,
        plan: SearchPlan,
        asked: Sequence[QuestionVectors],
        *,
        tell: Tell = silent,
        note: Note = lambda _: None,
    ) -> None:
        """`asked`: questions for all indexes, or for each of them.

        Opens the indexes; raises `ConfigError` for a plan that does not fit them.
        """
        self.plan = plan
        self.results = SearchCells(cells=[], disk=[], oracles=[])
        self._entries = [ENTRIES[name] for name in plan.contestants]
        if plan.cache_share is not None:
            check_cache_budgets(self._entries)
        if len(plan.indexes) not in (1, plan.seeds):
            raise ConfigError(
                f"there are {len(plan.indexes)} indexes and {plan.seeds} seeds: give --index once, "
                "or once for each seed"
            )
        self._tell, self._note = tell, note
        self.views = [open_clusters(plan.index_of(seed)) for seed in range(plan.seeds)]
        self._queries = []
        for seed, view in enumerate(self.views):
            nlist, dimension = view.centroids.shape
            if plan.nprobe > nlist:
                raise ConfigError(
                    f"--nprobe {plan.nprobe} is more than the {nlist} clusters of {view.dir}"
                )
            questions = asked[seed if len(asked) > 1 else 0]
            self._queries.append(choose_questions(questions, dimension, plan.queries, seed))

    def run(self) -> SearchCells:
        """Runs every cell and returns the results. Blocks for as long as the cells take."""
        for seed in range(self.plan.seeds):
            prepared = self._prepare(seed)
            for window in self.plan.windows:
                self._block(prepared, window)
        return self.results

    def _block(self, seed: _SeedData, window: int) -> None:
        names = order_of(self.plan.contestants, seed.seed, window)
        self._measure_disk(seed, window)
        self._compute_oracles(seed, window)
        for number, name in enumerate(names):
            if number and number == len(names) // 2:
                self._measure_disk(seed, window)
            cell = self._cell(seed, window, ENTRIES[name])
            self.results.cells.append(cell)
            self._note(cell_line(cell))
        self._measure_disk(seed, window)

    def _cell(self, seed: _SeedData, window: int, entry: ContestantEntry) -> Cell:
        plan = self.plan
        limits = plan.limits(seed.view, entry, window)
        cell = Cell(
            seed=seed.seed,
            window=window,
            contestant=entry.name,
            status="failed",
            limit_bytes=limits.memory_bytes,
            cache_bytes=limits.cache_bytes,
        )
        preparation = entry.preparation
        if preparation is not None and (why := seed.unprepared.get(preparation.name)):
            return msgspec.structs.replace(cell, error=why)
        folder = plan.work / "cells" / f"{seed.seed}-{window}-{entry.name}"
        dropped = drop_page_cache(
            [seed.view.dir, Path(seed.files.prepared_dir)], everything=plan.limited_by != "none"
        )
        step = f"seed {seed.seed}, windows of {window}: {entry.name}"
        ended = run_child(
            ChildRequest(kind="run", contestant=entry.name, files=seed.files, limits=limits),
            folder,
            limited_by=plan.limited_by,
            timeout_s=plan.timeout_s,
            on_progress=lambda answered: self._tell(step, answered, plan.queries),
        )
        self._tell(step, plan.queries, plan.queries)
        is_ok = ended.status == "ok"
        if is_ok:
            cell = self._judged(cell, seed, folder, entry)
        return msgspec.structs.replace(
            cell,
            status=ended.status,
            error=ended.outcome.error,
            is_bug=ended.outcome.is_bug,
            duration_s=round(ended.duration_s, 3),
            page_cache_dropped=dropped,
            group=ended.group,
            figures=ended.outcome.figures if is_ok else None,
        )

    def _judged(self, cell: Cell, seed: _SeedData, folder: Path, entry: ContestantEntry) -> Cell:
        """Returns the cell with what its ids are worth."""
        found = np.load(folder / IDS_NAME, allow_pickle=False)
        with np.load(seed.folder / REFERENCE_NAME, allow_pickle=False) as reference:
            probed = reference["ids"], reference["scores"]
            true = reference["true_ids"], reference["true_scores"]
        return msgspec.structs.replace(
            cell,
            agreement=check_exact(found, *probed) if entry.is_exact else None,
            recall_at_probes=recall_of(found, *probed),
            recall=recall_of(found, *true),
        )

    def _measure_disk(self, seed: _SeedData, window: int) -> None:
        rates = measure_disk(seed.reads, seed=seed.seed, duration_s=self.plan.disk_s)
        self.results.disk.append(DiskBlock(seed=seed.seed, window=window, rates=rates))

    def _compute_oracles(self, seed: _SeedData, window: int) -> None:
        sizes = np.array([extent.size_bytes for extent in seed.view.extents], dtype=np.int64)
        counts = oracles.window_counts(seed.probes, window, len(sizes))
        budget_bytes = self.plan.budget_bytes(seed.view)
        for name, found in (
            ("oracle-window", oracles.oracle_window(counts, sizes)),
            ("oracle-static", oracles.oracle_static(counts, sizes, budget_bytes)),
        ):
            self.results.oracles.append(
                OracleCell(
                    seed=seed.seed,
                    window=window,
                    name=name,
                    queries=len(seed.probes),
                    found=found,
                )
            )

    def _prepare(self, seed: int) -> _SeedData:
        """Writes questions, probes, contestants' files that are missing, and the reference."""
        view, (queries, earlier) = self.views[seed], self._queries[seed]
        probes = probe(view.centroids, queries, self.plan.nprobe)
        folder = self.plan.work / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / QUERIES_NAME, queries)
        np.save(folder / PROBES_NAME, probes)
        np.save(folder / EARLIER_NAME, earlier)
        np.save(folder / EARLIER_PROBES_NAME, probe(view.centroids, earlier, self.plan.nprobe))
        prepared_dir = self.plan.work / "prepared" / _folder_name(view)
        prepared = _SeedData(
            seed=seed,
            view=view,
            probes=probes,
            files=SearchFiles(
                index_dir=str(view.dir.absolute()),
                prepared_dir=str(prepared_dir.absolute()),
                folder=str(folder.absolute()),
                top_k=self.plan.top_k,
            ),
            folder=folder,
            reads=searcher_reads(view),
            unprepared={},
        )
        self._make_files(ENTRIES[REFERENCE], prepared, prepared_dir)
        for entry in self._entries:
            try:
                self._make_files(entry, prepared, prepared_dir)
            except CarpoolError as error:  # the others can run without these files
                assert entry.preparation is not None
                prepared.unprepared[entry.preparation.name] = str(error)
        self._search_reference(prepared)
        return prepared

    def _make_files(self, entry: ContestantEntry, seed: _SeedData, prepared_dir: Path) -> None:
        preparation = entry.preparation
        if preparation is None or preparation.name in seed.unprepared:
            return
        if (prepared_dir / preparation.name).exists():
            return
        self._note(f"making the files of {entry.name} for {seed.view.dir}, once")
        partial = prepared_dir / (preparation.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._child("prepare", entry.name, seed, into=partial)
        partial.rename(prepared_dir / preparation.name)

    def _search_reference(self, seed: _SeedData) -> None:
        self._note(f"seed {seed.seed}: searching all questions with {REFERENCE}, for comparison")
        self._child("reference", REFERENCE, seed, into=seed.folder / REFERENCE_NAME)

    def _child(self, kind: str, name: str, seed: _SeedData, *, into: Path) -> None:
        limits = Limits(memory_bytes=None, threads=self.plan.threads, window=1)
        request = ChildRequest(
            kind="prepare" if kind == "prepare" else "reference",
            contestant=name,
            files=seed.files,
            limits=limits,
            into=str(into.absolute()),
        )
        folder = seed.folder / f"{kind}-{name}"
        ended = run_child(request, folder, timeout_s=self.plan.timeout_s)
        if ended.status != "ok":
            raise CarpoolError(
                f"{kind} of {name} failed: {ended.outcome.error} (log: {folder / 'log'})"
            )


def searcher_reads(view: OpenIndex) -> tuple[DiskRead, ...]:
    """Returns the reads of the searcher: the slices of every cluster."""
    slices = Slices(view.extents, view.layout, SLICE_BYTES_MAX)
    return tuple(
        DiskRead(
            path=view.segment_paths[extent.segment],
            offset_bytes=extent.offset_bytes,
            size_bytes=extent.size_bytes,
        )
        for extent in slices.extents
    )


def _folder_name(view: OpenIndex) -> str:
    version = view.manifest.index_version
    kept = [letter if letter.isalnum() or letter in "-." else "-" for letter in version]
    return f"{''.join(kept)}-{hashlib.sha256(str(view.dir.absolute()).encode()).hexdigest()[:8]}"
