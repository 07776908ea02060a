"""Builds and tunes each contestant, then all take turns, a block for each mode."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from bench.core.machine import data_file
from bench.core.run import BenchRun
from bench.data.evaluation import distinct_order, read_vectors
from bench.data.exact import BestRows, exact_answers
from bench.search.cgroup import drop_page_cache
from bench.search.child import ARRAYS, IDS_NAME, ChildRequest, TunedFigures
from bench.search.contestants.contestant import TOP_K, Float32, chunks_of, shape_of
from bench.search.contestants.registry import ENTRIES, chosen_names, missing_packages
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from bench.search.report import (
    ALONE,
    BUILD,
    CLIENTS,
    WINDOWS,
    Cell,
    by_figure,
    cell_line,
    promises_of,
    rows_of,
)
from carpool.codes.margin import EXPECTED_RECALL
from carpool.errors import ConfigError

Note = Callable[[str], None]
BUILD_TIMEOUT_S, CELL_TIMEOUT_S = 4 * 3600.0, 1800.0
RECALLS = (0.95, 0.98)
MODES = {WINDOWS: (100, 1), CLIENTS: (1, 16), ALONE: (1, 1)}
"""Queries in a window and clients, by mode."""


def run(options: SearchOptions) -> bool:
    """Runs all cells, reports them, and returns whether every promise was kept. Blocks.

    Raises `ConfigError`.
    """
    begun = BenchRun("search", options)
    check_folders(options)
    names = chosen_names(options.contestants)
    for name, package in missing_packages(names).items():
        begun.note(f"{name} is left out: its package is not installed ({package})")
        names = tuple(other for other in names if other != name)
    cells = [
        cell
        for seed in range(len(options.collection))
        for cell in run_cells(options, seed, names, begun.note)
    ]
    cells = with_promises(cells, options.work)
    rows = rows_of(cells, options.recall or RECALLS)

    for cell in cells:
        if cell.at_probes is not None:
            begun.note(cell_line(cell))
    if options.memory_held_by == "none":
        begun.note("no process was limited: contestants took any memory")
    return begun.finish(
        {title: by_figure(columns) for title, columns in rows.items()},
        promises=promises_of(cells),
        results={"rows": rows, "cells": cells},
        data=[data_file(each / "vectors.npy") for each in options.collection],
    )


def check_folders(options: SearchOptions) -> None:
    """Raises `ConfigError` where a file of a collection is missing, or indexes do not fit."""
    collections = options.collection
    if not collections or len(options.index) not in (0, len(collections)):
        raise ConfigError(
            f"there are {len(collections)} collections and {len(options.index)} indexes: give "
            "--collection, and --index never or once for each"
        )
    for folder in collections:
        for name in ("vectors.npy", "corpus.jsonl", "queries.npy"):
            if not (folder / name).is_file():
                raise ConfigError(f"there is no {folder / name}: make it with carpool bench data")


def run_cells(
    options: SearchOptions,
    seed: int,
    names: tuple[str, ...],
    note: Note,
    timeout_s: float = CELL_TIMEOUT_S,
) -> Iterator[Cell]:
    """Yields every cell of a collection when it is done. `timeout_s`: of one that is measured."""
    folder, work = options.collection[seed].absolute(), options.work.absolute()
    prepared = work / "prepared" / hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    vectors_bytes = 4 * math.prod(shape_of(folder / "vectors.npy"))
    note(f"seed {seed}: searching all rows exactly, for comparison")
    arrays = work / f"seed-{seed}"
    expected = write_questions(folder, arrays, seed)

    def cell_of(
        name: str, mode: str, timeout_s: float, wish: ChildRequest, reached: tuple[float, ...] = ()
    ) -> Cell:
        entry, is_measured = ENTRIES[name], mode != BUILD
        limit_bytes = int((options.memory or 0) * vectors_bytes) or None
        index = options.index[seed] if options.index and entry.kind == "Carpool" else None
        request = structs.replace(
            wish,
            contestant=name,
            collection=str(folder),
            prepared=str(prepared / (entry.built_by or name)),
            arrays=str(arrays),
            index=str(index.absolute()) if index else None,
            memory_bytes=limit_bytes if entry.is_limited and is_measured else None,
        )
        is_held = options.memory_held_by == "cgroup" and is_measured
        if is_held:
            drop_page_cache()
        place = folder_of(work, seed, mode, name, wish.setting)
        ended = run_child(request, place, is_held=is_held, timeout_s=timeout_s)
        ids = np.load(place / IDS_NAME) if ended.figures and is_measured else None
        cell = Cell(
            seed=seed,
            contestant=name,
            mode=mode,
            setting=wish.setting,
            recalls=reached,
            limit_bytes=request.memory_bytes,
            recall=0.0 if ids is None else expected.recall(ids),
            **structs.asdict(ended),
        )
        note(cell_line(cell))
        return cell

    recalls = tuple(options.recall) or RECALLS
    turns: dict[tuple[str, int], tuple[float, ...]] = {}
    for name in sorted(names, key=lambda name: ENTRIES[name].built_by is not None):
        if (built_by := ENTRIES[name].built_by) in names:
            turns |= {
                (name, at): reached for (other, at), reached in turns.items() if other == built_by
            }
            continue
        cell = cell_of(name, BUILD, BUILD_TIMEOUT_S, ChildRequest(targets=recalls))
        yield cell
        if isinstance(cell.figures, TunedFigures):
            for recall, setting in zip(recalls, cell.figures.settings, strict=True):
                if setting is not None:
                    turns[name, setting] = (*turns.get((name, setting), ()), recall)
    for number, (mode, (window, clients)) in enumerate(MODES.items()):
        # No contestant always runs after the same one, or at the same place.
        for turn in np.random.default_rng((seed, number)).permutation(len(turns)).tolist():
            (name, setting), reached = list(turns.items())[turn]
            wish = ChildRequest(setting=setting, window=window, clients=clients)
            yield cell_of(name, mode, timeout_s, wish, reached)


def folder_of(work: Path, seed: int, mode: str, name: str, setting: int | None) -> Path:
    """Returns the folder of a cell."""
    return work.absolute() / "cells" / f"{seed}-{mode}-{name}-{setting}".replace(" ", "-")


def with_promises(cells: Sequence[Cell], work: Path) -> list[Cell]:
    """Returns the cells; those of Carpool with the share of an exact search's ids that they found.

    Where `carpool-exact` was asked in the same windows at the same setting.
    """
    ids = {
        (cell.seed, cell.contestant, cell.setting): np.load(
            folder_of(work, cell.seed, WINDOWS, cell.contestant, cell.setting) / IDS_NAME
        )
        for cell in cells
        if cell.mode == WINDOWS and cell.figures and ENTRIES[cell.contestant].kind == "Carpool"
    }
    found = []
    for cell in cells:
        own = ids.get((cell.seed, cell.contestant, cell.setting))
        exact = ids.get((cell.seed, "carpool-exact", cell.setting))
        if cell.mode == WINDOWS and own is not None and exact is not None and own is not exact:
            shared = sum(len(np.intersect1d(*both)) for both in zip(own, exact, strict=True))
            promised = EXPECTED_RECALL[ENTRIES[cell.contestant].arguments[0]]
            cell = structs.replace(cell, promised=promised, at_probes=shared / exact.size)
        found.append(cell)
    return found


def halves(questions: Float32, dimension: int, seed: int) -> tuple[Float32, Float32]:
    """Returns the distinct questions in the random order of a seed, in two halves.

    Both are (questions, dim) float32. Raises `ConfigError` where the dimension differs, or there
    are fewer than two.
    """
    if questions.shape[1] != dimension or len(questions) < 2:
        raise ConfigError(
            f"the questions have shape {questions.shape}, and the rows are of dimension "
            f"{dimension}: give two or more vectors of the model that the rows are of"
        )
    one, other = np.array_split(questions[distinct_order(questions, seed)], 2)
    return one, other


def write_questions(folder: Path, arrays: Path, seed: int) -> BestRows:
    """Writes the halves of a collection's questions, and what the tuning half should find.

    Returns what the other half should find. Blocks for minutes: it scores every row.
    """
    vectors = folder / "vectors.npy"
    tuning, queries = halves(read_vectors(folder / "queries.npy"), shape_of(vectors)[1], seed)
    best = exact_answers(chunks_of(vectors), np.concatenate([tuning, queries]), TOP_K)
    known, expected = (
        BestRows(best.rows[some], best.scores[some])
        for some in (slice(len(tuning)), slice(len(tuning), None))
    )
    arrays.mkdir(parents=True, exist_ok=True)
    for name, array in zip(ARRAYS, (tuning, known.rows, known.scores, queries), strict=True):
        np.save(arrays / f"{name}.npy", array)  # type: ignore[call-overload]
    return expected
