"""Runs the cells: a block for each seed and window size, each contestant once in a block."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.core.machine import data_file
from bench.core.options import counts_of
from bench.core.run import begin
from bench.data.clusters import open_clusters, vectors_bytes
from bench.data.index import BenchIndex
from bench.search.child import ARRAYS, IDS_NAME, ChildRequest
from bench.search.contestants.contestant import ContestantEntry, Limits, SearchData
from bench.search.contestants.registry import ENTRIES, chosen_names
from bench.search.kernel import drop_page_cache
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from bench.search.questions import choose_questions, read_question_vectors
from bench.search.reference import Reference, exact_answers
from bench.search.report import (
    Cell,
    cell_line,
    print_tables,
    promises_of,
    rows_of,
)
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError

Note = Callable[[str], None]
TOP_K = 10


@dataclass(frozen=True, kw_only=True)
class _SeedData:
    """The data of a seed, ready on disk."""

    seed: int
    data: SearchData
    folder: Path
    reference: Reference
    limit_bytes: int


def run(options: SearchOptions) -> bool:
    """Runs all cells, reports them, and returns whether every promise was kept. Blocks.

    After Ctrl-C the cells that are done are reported. Raises `ConfigError`.
    """
    begun = begin("search", options)
    cells = SearchRun(options, note=begun.note)
    try:
        cells.run()
    except KeyboardInterrupt:
        begun.note("stopped: the report has the cells that are done")
    rows = rows_of(cells.done, cells.windows, cells.contestants)
    indexes = [
        BenchIndex(dir=view.dir, manifest=view.manifest).facts
        for view in cells.views[: len(options.index)]
    ]

    def show(output: Console) -> None:
        print_tables(output, rows)
        if options.memory_held_by == "none":
            output.print("no process was limited: contestants took any memory", style="yellow")
        if len(options.index) == 1 and options.seeds > 1:
            output.print(
                "seeds differ in the order of arrival only: give --index once for each seed",
                style="yellow",
            )

    return begun.finish(
        show,
        promises=promises_of(cells.done),
        results={"indexes": indexes, "rows": rows, "cells": cells.done},
        data=tuple(map(data_file, options.questions)),
    )


class SearchRun:
    """A run of `carpool bench search`. `done` has the cells that are done."""

    def __init__(self, options: SearchOptions, *, note: Note = lambda _: None) -> None:
        """Opens the indexes; raises `ConfigError` for options that do not fit them."""
        self.options = options
        self.contestants = chosen_names(options.contestants)
        self.windows = counts_of("--windows", options.windows)
        self.done: list[Cell] = []
        self._note = note
        indexes, files = options.index, options.questions
        if len(indexes) not in (1, options.seeds) or len(files) not in (1, len(indexes)):
            raise ConfigError(
                f"there are {len(indexes)} indexes, {len(files)} files of questions and "
                f"{options.seeds} seeds: give --index once, or once for each seed, and --questions "
                "once, or once for each --index"
            )
        self.views: list[OpenIndex] = []
        self._queries = []
        for seed in range(options.seeds):
            view = open_clusters(indexes[seed % len(indexes)])
            nlist, dimension = view.centroids.shape
            if options.nprobe > nlist:
                raise ConfigError(
                    f"--nprobe {options.nprobe} is more than the {nlist} clusters of {view.dir}"
                )
            asked = read_question_vectors(files[seed % len(files)])
            self._queries.append(choose_questions(asked, dimension, options.queries, seed))
            self.views.append(view)

    def run(self) -> None:
        """Runs every cell. Blocks for as long as the cells take."""
        for seed in range(self.options.seeds):
            prepared = self._prepare(seed)
            for window in self.windows:
                # No contestant always runs after the same one, or at the same place.
                order = np.random.default_rng((seed, window)).permutation(len(self.contestants))
                for at in order:
                    cell = self._cell(prepared, window, ENTRIES[self.contestants[at]])
                    self.done.append(cell)
                    self._note(cell_line(cell))

    def _prepare(self, seed: int) -> _SeedData:
        """Writes questions, probes and missing files of contestants, and searches exactly."""
        options, view, (queries, earlier) = self.options, self.views[seed], self._queries[seed]
        data = SearchData(
            index_dir=view.dir,
            prepared_dir=options.work / "prepared" / _folder_name(view),
            top_k=TOP_K,
            queries=queries,
            probes=probe(view.centroids, queries, options.nprobe),
            earlier=earlier,
            earlier_probes=probe(view.centroids, earlier, options.nprobe),
        )
        for name in self.contestants:
            self._make_files(ENTRIES[name], data)
        self._note(f"seed {seed}: searching all rows exactly, for comparison")
        folder = options.work / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(data, name))
        return _SeedData(
            seed=seed,
            data=data,
            folder=folder,
            reference=exact_answers(data),
            limit_bytes=int(options.memory * vectors_bytes(view)),
        )

    def _make_files(self, entry: ContestantEntry, data: SearchData) -> None:
        if entry.prepare is None or (data.prepared_dir / entry.name).exists():
            return
        self._note(f"making the files of {entry.name} for {data.index_dir}, once")
        partial = data.prepared_dir / f"{entry.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        entry.prepare(data, partial)
        partial.rename(data.prepared_dir / entry.name)

    def _cell(self, seed: _SeedData, window: int, entry: ContestantEntry) -> Cell:
        options = self.options
        limits = Limits(
            memory_bytes=seed.limit_bytes if entry.is_limited else None,
            threads=len(os.sched_getaffinity(0)),
            window=window,
        )
        folder = options.work / "cells" / f"{seed.seed}-{window}-{entry.name}"
        drop_page_cache(
            [seed.data.index_dir, seed.data.prepared_dir],
            everything=options.memory_held_by != "none",
        )
        request = ChildRequest(
            contestant=entry.name,
            limits=limits,
            index_dir=str(seed.data.index_dir.absolute()),
            prepared_dir=str(seed.data.prepared_dir.absolute()),
            folder=str(seed.folder.absolute()),
            top_k=TOP_K,
        )
        ended = run_child(
            request, folder, limited_by=options.memory_held_by, timeout_s=options.cell_timeout_s
        )
        is_ok = ended.status == "ok"
        found = np.load(folder / IDS_NAME, allow_pickle=False) if is_ok else None
        return Cell(
            seed=seed.seed,
            window=window,
            contestant=entry.name,
            status=ended.status,
            error=ended.outcome.error,
            is_bug=ended.outcome.is_bug,
            is_exact=entry.is_exact,
            duration_s=round(ended.duration_s, 3),
            limit_bytes=limits.memory_bytes,
            peak_bytes=ended.peak_bytes,
            figures=ended.outcome.figures if is_ok else None,
            recall=None if found is None else seed.reference.of_all.recall(found),
            recall_at_probes=None if found is None else seed.reference.of_probed.recall(found),
        )


def _folder_name(view: OpenIndex) -> str:
    name = f"{view.dir.absolute()} {view.manifest.index_version}"
    return hashlib.sha256(name.encode()).hexdigest()[:12]
