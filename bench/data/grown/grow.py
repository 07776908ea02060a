"""Grows a set: writes vectors, judges whether they behave as the real ones, and publishes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.core.progress import Tell, progress_bars
from bench.core.tables import table_of
from bench.data.evaluation import CORPUS, EvaluationData, Float32, find_data, read_vectors
from bench.data.grown.behaviour import NLIST, Acceptance, Behaviour, behaviour, nearest
from bench.data.grown.fitted import FITTED_PART
from bench.data.grown.options import GrowOptions
from bench.data.grown.output import (
    QUERIES_NAME,
    VECTORS_NAME,
    GrownSet,
    publish,
    write_documents,
    write_vectors,
)
from bench.data.grown.recipe import Recipe
from bench.data.grown.sources import load_questions, load_sources
from bench.data.trace import cluster
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole
from indexer.corpus import file_sha256
from indexer.vectors import open_precomputed

ROWS_MIN = 10 * NLIST
DOCUMENT_BYTES = 250
"""About the size of a line of the corpus."""
JUDGES_MAX = 4_000
SPREADS = ((16_000, 0.8), (200_000, 1.6), (1_000_000, 2.3), (5_400_000, 3.1))
"""The usual spread by rows (interpolated by log): it fits Wikipedia's introductions."""


class RefusedError(ConfigError):
    """A grown set does not behave as the real one; nothing was published."""

    def __init__(self, message: str, acceptance: Acceptance) -> None:
        super().__init__(message)
        self.acceptance = acceptance


def run(options: GrowOptions) -> bool:
    """Grows a set and prints the table; returns whether it was accepted. Raises `ConfigError`."""
    console = TerminalConsole(stderr=True)
    try:
        with progress_bars(console) as tell:
            grown = grow(options, find_data(options.data), tell)
    except RefusedError as error:
        TerminalConsole().print(table_of(f"nlist {NLIST}", error.acceptance.columns()))
        console.print(f"refused: {error}", style="red", markup=False, soft_wrap=True)
        return False
    TerminalConsole().print(table_of(f"nlist {NLIST}", grown.acceptance.columns()))
    spread = grown.recipe.spread
    console.print(f"accepted: {options.out}, spread {spread:.4f}", markup=False, soft_wrap=True)
    return True


def usual_spread(rows: int) -> float:
    """Returns the usual spread of a set of so many rows."""
    sizes, spreads = zip(*SPREADS, strict=True)
    return float(np.interp(np.log(rows), np.log(sizes), spreads))


def grow(options: GrowOptions, data: EvaluationData, tell: Tell) -> GrownSet:
    """Grows a set, judges it, and publishes it at `options.out`. Blocks for minutes.

    Raises `RefusedError` where it does not behave as the real set, `ConfigError` where data, model
    or disk do not fit. After an error there is nothing at `options.out`.
    """
    out = options.out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; remove it, or name another --out")
    if options.rows < ROWS_MIN:
        raise ConfigError(
            f"{options.rows} rows cannot be judged at nlist {NLIST}: ask for {ROWS_MIN} or more"
        )
    real = data.vectors_path(CORPUS)
    partial = out.with_name(out.name + ".partial")
    try:
        _make_folder(options, partial, dimension=read_vectors(real).shape[1])
        return _grow(options, data, partial, tell)
    except OSError as error:
        raise ConfigError(
            f"cannot write {partial} ({error}); make room, or name another --out"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_folder(options: GrowOptions, partial: Path, *, dimension: int) -> None:
    """Makes the folder of the set. Raises `ConfigError` where the disk has no room for it."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    needed_bytes = options.rows * (dimension * 2 + DOCUMENT_BYTES)
    free_bytes = shutil.disk_usage(partial).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"{options.rows} rows take about {needed_bytes / 1e9:.1f} GB, and {partial.parent} has "
            f"{free_bytes / 1e9:.1f} GB left: make room, or name another --out"
        )


def _grow(options: GrowOptions, data: EvaluationData, partial: Path, tell: Tell) -> GrownSet:
    real, vectors = data.vectors_path(CORPUS), partial / VECTORS_NAME
    sources = load_sources(
        data,
        sentences=options.sentences,
        embedding=EmbeddingSettings(model=options.model) if options.model else EmbeddingSettings(),
        cache=options.cache.resolve(),
        tell=tell,
    )
    questions = load_questions(data, options.seed)
    count = len(questions)
    judges = questions[: min(JUDGES_MAX, count - count // FITTED_PART)]
    spread = options.spread or usual_spread(options.rows)
    recipe = Recipe(row_count=options.rows, seed=options.seed, spread=spread)
    write_vectors(vectors, sources, recipe, tell)
    acceptance = Acceptance(
        real=_behaviour_of(real, judges, options, tell),
        grown=_behaviour_of(vectors, judges, options, tell),
    )
    if not acceptance.holds():
        raise RefusedError(
            f"{options.rows:,} rows of spread {spread:.3f} do not behave as the real set: nothing "
            "was written. The table shows the differences. A larger --spread lowers the recall",
            acceptance,
        )
    write_documents(partial, sources, recipe, tell)
    np.save(partial / QUERIES_NAME, questions.astype("<f4"), allow_pickle=False)
    found = GrownSet(
        recipe=recipe,
        passages=sources.passage_count,
        sentences=sources.sentence_count,
        neighbours=sources.neighbours.shape[1],
        questions_judged=len(judges),
        acceptance=acceptance,
        source_sha256=file_sha256(real, "vectors"),
        files={},
    )
    return publish(partial, options.out.resolve(), found)


def _behaviour_of(path: Path, judges: Float32, options: GrowOptions, tell: Tell) -> Behaviour:
    """Clusters the vectors at `path`, and measures how they behave."""

    def counted(step: str) -> Callable[[int], None]:
        done = 0

        def on_rows(rows: int) -> None:
            nonlocal done
            done += rows
            tell(step, done, options.rows)

        return on_rows

    clustering = cluster(
        open_precomputed(path),
        nlist=NLIST,
        seed=options.seed,
        on_rows=counted("rows assigned"),
    )
    found = nearest(path, judges, counted("rows compared"))
    return behaviour(found, clustering, judges, options.seed)
