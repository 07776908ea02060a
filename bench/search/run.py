"""Runs the cells: a block for each seed and window size, each contestant once in a block."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from bench.core.machine import data_file
from bench.core.options import counts_of
from bench.core.run import BenchRun
from bench.core.tables import table_of
from bench.data.clusters import open_clusters, vectors_bytes
from bench.data.index import BenchIndex
from bench.search.cgroup import drop_page_cache
from bench.search.child import ARRAYS, IDS_NAME, ChildRequest
from bench.search.contestants.contestant import SearchData
from bench.search.contestants.registry import ENTRIES, chosen_names
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from bench.search.questions import choose_questions, read_question_vectors
from bench.search.reference import exact_answers
from bench.search.report import Cell, cell_line, promises_of, rows_of
from carpool.disk.centroids import probe
from carpool.errors import ConfigError

Note = Callable[[str], None]
CELL_TIMEOUT_S = 1800.0


def run(options: SearchOptions) -> bool:
    """Runs all cells, reports them, and returns whether every promise was kept. Blocks.

    Raises `ConfigError`.
    """
    begun = BenchRun("search", options)
    seeds = seeds_of(options)
    cells = list(run_cells(options, seeds, begun.note))
    rows = rows_of(cells)
    indexes = map(open_clusters, options.index)

    def show(output: Console) -> None:
        for title, columns in rows.items():
            output.print(table_of(title, columns))
        for cell in cells:
            if cell.status != "ok":
                output.print(Text(cell_line(cell), "yellow"), soft_wrap=True)
        if options.memory_held_by == "none":
            output.print("no process was limited: contestants took any memory", style="yellow")

    return begun.finish(
        show,
        promises=promises_of(cells),
        results={
            "indexes": [BenchIndex(dir=each.dir, manifest=each.manifest).facts for each in indexes],
            "rows": rows,
            "cells": cells,
        },
        data=tuple(map(data_file, options.questions)),
    )


def seeds_of(options: SearchOptions) -> list[SearchData]:
    """Returns what is searched with each seed.

    Raises `ConfigError` for options that do not fit the indexes.
    """
    indexes, files = options.index, options.questions
    if len(indexes) not in (1, options.seeds) or len(files) not in (1, len(indexes)):
        raise ConfigError(
            f"there are {len(indexes)} indexes, {len(files)} files of questions and "
            f"{options.seeds} seeds: give --index once, or once for each seed, and --questions "
            "once, or once for each --index"
        )
    found = []
    for seed in range(options.seeds):
        index = open_clusters(indexes[seed % len(indexes)])
        nlist, dimension = index.centroids.shape
        if options.nprobe > nlist:
            raise ConfigError(
                f"--nprobe {options.nprobe} is more than the {nlist} clusters of {index.dir}"
            )
        vectors = read_question_vectors(files[seed % len(files)])
        asked, earlier = choose_questions(vectors, dimension, options.queries, seed)
        identity = f"{index.dir.absolute()} {index.manifest.index_version}"
        folder = hashlib.sha256(identity.encode()).hexdigest()[:12]
        found.append(
            SearchData(
                index_dir=index.dir.absolute(),
                prepared_dir=options.work.absolute() / "prepared" / folder,
                queries=asked,
                probes=probe(index.centroids, asked, options.nprobe),
                earlier=earlier,
                earlier_probes=probe(index.centroids, earlier, options.nprobe),
                memory_bytes=int(options.memory * vectors_bytes(index)),
            )
        )
    return found


def run_cells(
    options: SearchOptions,
    seeds: Sequence[SearchData],
    note: Note,
    timeout_s: float = CELL_TIMEOUT_S,
) -> Iterator[Cell]:
    """Yields every cell when it is done. `timeout_s`: of a cell."""
    names = chosen_names(options.contestants)
    for seed, data in enumerate(seeds):
        for name in names:
            _prepare(name, data, note)
        note(f"seed {seed}: searching all rows exactly, for comparison")
        reference = exact_answers(data)
        arrays = options.work.absolute() / f"seed-{seed}"
        arrays.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            np.save(arrays / f"{name}.npy", getattr(data, name))
        for window in counts_of("--windows", options.windows):
            # No contestant always runs after the same one, or at the same place.
            for name in np.random.default_rng((seed, window)).permutation(names).tolist():
                folder = options.work / "cells" / f"{seed}-{window}-{name}"
                request = ChildRequest(
                    contestant=name,
                    window=window,
                    memory_bytes=data.memory_bytes if ENTRIES[name].is_limited else None,
                    index_dir=str(data.index_dir),
                    prepared_dir=str(data.prepared_dir),
                    arrays=str(arrays),
                )
                is_held = options.memory_held_by == "cgroup"
                if is_held:
                    drop_page_cache()
                ended = run_child(request, folder, is_held=is_held, timeout_s=timeout_s)
                found = np.load(folder / IDS_NAME) if ended.figures else None
                cell = Cell(
                    seed=seed,
                    window=window,
                    contestant=name,
                    **msgspec.structs.asdict(ended),
                    is_exact=ENTRIES[name].is_exact,
                    limit_bytes=request.memory_bytes,
                    recall=0.0 if found is None else reference.of_all.recall(found),
                    recall_at_probes=0.0 if found is None else reference.of_probed.recall(found),
                )
                note(cell_line(cell))
                yield cell


def _prepare(name: str, data: SearchData, note: Note) -> None:
    """Makes the files that a contestant needs of the index, once."""
    if not ENTRIES[name].is_prepared or (data.prepared_dir / name).exists():
        return
    note(f"making the files of {name} for {data.index_dir}, once")
    partial = data.prepared_dir / f"{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    ENTRIES[name].load().prepare(name, data, partial)
    partial.rename(data.prepared_dir / name)
