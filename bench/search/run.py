"""Runs the cells: a block for each seed and window size, each contestant once in a block."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.core.machine import data_file
from bench.core.options import counts_of
from bench.core.run import begin
from bench.data.clusters import open_clusters, vectors_bytes
from bench.data.index import BenchIndex
from bench.search.child import IDS_NAME, ChildRequest, SearchFiles
from bench.search.contestants.contestant import ContestantEntry, Limits, SearchData
from bench.search.contestants.registry import ENTRIES, chosen_names
from bench.search.kernel import drop_page_cache
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from bench.search.questions import choose_questions, read_question_vectors
from bench.search.reference import Reference, exact_answers
from bench.search.report import (
    Cell,
    SearchResults,
    cell_line,
    list_contestants,
    print_tables,
    promises_of,
    rows_of,
)
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole

Note = Callable[[str], None]
TOP_K = 10


@dataclass(frozen=True, kw_only=True)
class _SeedData:
    """The data of a seed, ready on disk."""

    seed: int
    files: SearchFiles
    reference: Reference
    limit_bytes: int


def run(options: SearchOptions) -> bool:
    """Runs all cells, reports them, and returns whether every promise was kept. Blocks.

    After Ctrl-C the cells that are done are reported. Raises `ConfigError`.
    """
    if options.list_them:
        list_contestants()
        return True
    run = begin("search", options)
    console = TerminalConsole(stderr=True)

    def note(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    cells = SearchRun(options, note=note)
    try:
        cells.run()
    except KeyboardInterrupt:
        note("stopped: the report has the cells that are done")
    results = SearchResults(
        indexes=tuple(
            BenchIndex(dir=view.dir, manifest=view.manifest).facts
            for view in cells.views[: len(options.index)]
        ),
        rows=rows_of(cells.done, cells.windows, cells.contestants),
        cells=cells.done,
    )

    def show(output: Console) -> None:
        print_tables(output, results)
        if options.memory_held_by == "none":
            output.print("no process was limited: contestants took any memory", style="yellow")
        if len(options.index) == 1 and options.seeds > 1:
            output.print(
                "seeds differ in the order of arrival only: give --index once for each seed",
                style="yellow",
            )

    return run.finish(
        show,
        promises=promises_of(cells.done),
        results=results,
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
                for name in order_of(self.contestants, seed, window):
                    cell = self._cell(prepared, window, ENTRIES[name])
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
        return _SeedData(
            seed=seed,
            files=SearchFiles.of(data, options.work / f"seed-{seed}"),
            reference=exact_answers(data),
            limit_bytes=int(options.memory * vectors_bytes(view)),
        )

    def _make_files(self, entry: ContestantEntry, data: SearchData) -> None:
        if entry.preparation is None or (data.prepared_dir / entry.preparation.name).exists():
            return
        self._note(f"making the files of {entry.name} for {data.index_dir}, once")
        partial = data.prepared_dir / f"{entry.preparation.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        entry.preparation.make(data, partial)
        partial.rename(data.prepared_dir / entry.preparation.name)

    def _cell(self, seed: _SeedData, window: int, entry: ContestantEntry) -> Cell:
        options = self.options
        limits = Limits(
            memory_bytes=seed.limit_bytes if entry.is_limited else None,
            threads=len(os.sched_getaffinity(0)),
            window=window,
        )
        folder = options.work / "cells" / f"{seed.seed}-{window}-{entry.name}"
        drop_page_cache(
            [Path(seed.files.index_dir), Path(seed.files.prepared_dir)],
            everything=options.memory_held_by != "none",
        )
        ended = run_child(
            ChildRequest(contestant=entry.name, files=seed.files, limits=limits),
            folder,
            limited_by=options.memory_held_by,
            timeout_s=options.cell_timeout_s,
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
    version = view.manifest.index_version
    kept = [letter if letter.isalnum() or letter in "-." else "-" for letter in version]
    return f"{''.join(kept)}-{hashlib.sha256(str(view.dir.absolute()).encode()).hexdigest()[:8]}"


def order_of(contestants: Sequence[str], seed: int, window: int) -> list[str]:
    """Returns the contestants of a block in a random order of its own. Pure.

    So no contestant always runs after the same one, or at the same place.
    """
    order = np.random.default_rng((seed, window)).permutation(len(contestants))
    return [contestants[at] for at in order]
