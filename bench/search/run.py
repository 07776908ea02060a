"""Builds and tunes each contestant, then all take turns, a block for each mode."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from bench.core.machine import data_file
from bench.core.run import BenchRun
from bench.data.evaluation import distinct_order, read_vectors
from bench.data.exact import BestRows, exact_answers
from bench.search import report
from bench.search.cgroup import drop_page_cache
from bench.search.child import ARRAYS, IDS_NAME, ChildRequest, TunedFigures
from bench.search.contestants.contestant import TOP_K, chunks_of, shape_of
from bench.search.contestants.registry import ENTRIES, chosen_names, missing_packages
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from carpool.arrays import Float32, Int64
from carpool.codes.margin import EXPECTED_RECALL
from carpool.errors import ConfigError

BUILD_TIMEOUT_S, CELL_TIMEOUT_S = 4 * 3600.0, 1800.0
MODES = {report.WINDOWS: (100, 1), report.CLIENTS: (1, 16), report.ALONE: (1, 1)}
"""Queries in a window and clients, by mode."""
EXACT = "carpool-exact"


def run(options: SearchOptions) -> bool:
    check_folder(options.collection)
    names = chosen_names(options.contestants)
    run = SearchRun(options)
    for name, package in missing_packages(names).items():
        run.note(f"{name} is left out: its package is not installed ({package})")
        names = tuple(other for other in names if other != name)
    cells = run.with_promises(list(run.cells(names)))
    rows = report.rows_of(cells, options.recall)
    for cell in cells:
        if cell.at_probes is not None:
            run.note(report.cell_line(cell))
    if options.memory_held_by == "none":
        run.note("no process was limited: contestants took any memory")
    return run.finish(
        rows,
        promises=report.promises_of(cells),
        results={"rows": rows, "cells": cells},
        data=[data_file(options.collection / "vectors.npy")],
    )


def check_folder(folder: Path) -> None:
    """Raises `ConfigError` where a file of a collection is missing."""
    for name in ("vectors.npy", "corpus.jsonl", "queries.npy"):
        if not (folder / name).is_file():
            raise ConfigError(f"there is no {folder / name}: make it with carpool bench data")


class SearchRun(BenchRun):
    """A run: one cell after the other, each a contestant in a process of its own."""

    def __init__(self, options: SearchOptions) -> None:
        """Searches all rows exactly, for comparison. Blocks for minutes."""
        super().__init__("search", options)
        folder, self._work = options.collection.absolute(), options.work.absolute()
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        self._prepared, self._arrays = self._work / "prepared" / name, self._work / "questions"
        vectors_bytes = 4 * math.prod(shape_of(folder / "vectors.npy"))
        self._limit_bytes = int((options.memory or 0) * vectors_bytes) or None
        self._is_held = options.memory_held_by == "cgroup"
        self.note("searching all rows exactly, for comparison")
        self._expected = write_questions(folder, self._arrays)

    def cells(self, names: Sequence[str]) -> Iterator[report.Cell]:
        """Yields every cell when it is done."""
        recalls = tuple(self.options.recall)
        turns: dict[tuple[str, int], tuple[float, ...]] = {}  # recalls by contestant and setting
        for name in sorted(names, key=lambda name: ENTRIES[name].built_by is not None):
            if (built_by := ENTRIES[name].built_by) in names:
                same = {at: reached for (other, at), reached in turns.items() if other == built_by}
                turns |= {(name, at): reached for at, reached in same.items()}
                continue
            cell = self._cell(name, report.BUILD, ChildRequest(targets=recalls))
            yield cell
            if isinstance(cell.figures, TunedFigures):
                for recall, setting in zip(recalls, cell.figures.settings, strict=True):
                    if setting is not None:
                        turns[name, setting] = (*turns.get((name, setting), ()), recall)
        for number, (mode, (window, clients)) in enumerate(MODES.items()):
            # No contestant always runs after the same one, or at the same place.
            for turn in np.random.default_rng(number).permutation(len(turns)).tolist():
                (name, setting), reached = list(turns.items())[turn]
                wish = ChildRequest(setting=setting, window=window, clients=clients)
                yield self._cell(name, mode, wish, reached)

    def _cell(
        self, name: str, mode: str, wish: ChildRequest, reached: tuple[float, ...] = ()
    ) -> report.Cell:
        entry, is_measured, index = ENTRIES[name], mode != report.BUILD, self.options.index
        request = structs.replace(
            wish,
            contestant=name,
            collection=str(self.options.collection.absolute()),
            prepared=str(self._prepared / (entry.built_by or name)),
            arrays=str(self._arrays),
            index=str(index.absolute()) if index and entry.kind == "Carpool" else None,
            memory_bytes=self._limit_bytes if entry.is_limited and is_measured else None,
        )
        is_held = self._is_held and is_measured
        if is_held:
            drop_page_cache()
        folder = self._folder(name, mode, wish.setting)
        timeout_s = CELL_TIMEOUT_S if is_measured else BUILD_TIMEOUT_S
        ended = run_child(request, folder, is_held=is_held, timeout_s=timeout_s)
        ids = np.load(folder / IDS_NAME) if ended.figures and is_measured else None
        cell = report.Cell(
            contestant=name,
            mode=mode,
            setting=wish.setting,
            recalls=reached,
            limit_bytes=request.memory_bytes,
            recall=0.0 if ids is None else self._expected.recall(ids),
            **structs.asdict(ended),
        )
        self.note(report.cell_line(cell))
        return cell

    def _folder(self, name: str, mode: str, setting: int | None) -> Path:
        return self._work / "cells" / f"{mode}-{name}-{setting}".replace(" ", "-")

    def with_promises(self, cells: Sequence[report.Cell]) -> list[report.Cell]:
        """Returns the cells; those of Carpool with the share of an exact search's ids they found.

        Where `carpool-exact` was asked in the same windows at the same setting.
        """
        asked = [cell for cell in cells if cell.mode == report.WINDOWS and cell.figures]
        exact = {each.setting: self._ids(each) for each in asked if each.contestant == EXACT}
        found = []
        for cell in cells:
            entry = ENTRIES[cell.contestant]
            is_ours = entry.kind == "Carpool" and cell.contestant != EXACT
            if is_ours and cell in asked and (right := exact.get(cell.setting)) is not None:
                both = zip(self._ids(cell), right, strict=True)
                shared = sum(len(np.intersect1d(*ids)) for ids in both)
                promised = EXPECTED_RECALL[entry.arguments[0]]
                cell = structs.replace(cell, promised=promised, at_probes=shared / right.size)
            found.append(cell)
        return found

    def _ids(self, cell: report.Cell) -> Int64:
        found: Int64 = np.load(
            self._folder(cell.contestant, cell.mode, cell.setting) / IDS_NAME, allow_pickle=False
        )
        return found


def halves(questions: Float32, dimension: int) -> tuple[Float32, Float32]:
    """Returns the distinct questions in a random order, in two halves: (questions, dim) float32.

    Raises `ConfigError` where the dimension differs, or there are fewer than two.
    """
    if questions.shape[1] != dimension or len(questions) < 2:
        raise ConfigError(
            f"the questions have shape {questions.shape}, and the rows are of dimension "
            f"{dimension}: give two or more vectors of the model that the rows are of"
        )
    one, other = np.array_split(questions[distinct_order(questions, 0)], 2)
    return one, other


def write_questions(folder: Path, arrays: Path) -> BestRows:
    """Writes the halves of a collection's questions, and what the tuning half should find.

    Returns what the other half should find. Blocks for minutes: it scores every row.
    """
    vectors = folder / "vectors.npy"
    tuning, queries = halves(read_vectors(folder / "queries.npy"), shape_of(vectors)[1])
    best = exact_answers(chunks_of(vectors), np.concatenate([tuning, queries]), TOP_K)
    known, expected = (
        BestRows(best.rows[some], best.scores[some])
        for some in (slice(len(tuning)), slice(len(tuning), None))
    )
    arrays.mkdir(parents=True, exist_ok=True)
    for name, array in zip(ARRAYS, (tuning, known.rows, known.scores, queries), strict=True):
        np.save(arrays / f"{name}.npy", array)  # type: ignore[call-overload]
    return expected
