"""Grows a set: writes vectors, measures them, adapts the spread; then judges and publishes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.core.progress import Tell
from bench.data.evaluation import CORPUS, EvaluationData, Float32, read_vectors
from bench.data.grown.behaviour import (
    NLIST,
    Acceptance,
    Behaviour,
    behaviour,
    nearest,
)
from bench.data.grown.fit import FITTED_PART, Trial, first_spread, next_spread
from bench.data.grown.output import (
    VECTORS_NAME,
    GrownSet,
    publish,
    write_documents,
    write_questions,
    write_vectors,
)
from bench.data.grown.recipe import Recipe
from bench.data.grown.sources import RealQuestions, Sources, load_questions, load_sources
from bench.data.trace import Clustered, cluster
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from indexer.corpus import file_sha256
from indexer.vectors import open_precomputed

ROWS_MIN = 10 * NLIST
DOCUMENT_BYTES = 250
"""About the size of a line of the corpus."""
FIT_MARGIN = 0.5
"""The search ends when the fit is within this part of the tolerances: other questions judge."""
ROUNDS_MAX = 8
"""Spreads to try at most."""
SETTLED = 0.03
"""The search also ends when the next spread differs by less than this share."""

Note = Callable[[str], None]


class RefusedError(ConfigError):
    """A grown set does not behave as the real one; nothing was published."""

    def __init__(self, message: str, acceptance: Acceptance) -> None:
        super().__init__(message)
        self.acceptance = acceptance


class GrowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to grow, and where to.

    `spread`: the only one to try; None: search for one. `fit_questions`: that
    the spread is fitted with; `judge_questions`: others that judge the set.
    """

    out: Path
    row_count: int
    seed: int
    cache: Path
    embedding: EmbeddingSettings = EmbeddingSettings()
    sentences: bool = True
    spread: float | None = None
    fit_questions: int = 2000
    judge_questions: int = 4000


class _Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A growth in progress. `fit`, `judge`: (n, dim) float32, different questions."""

    request: GrowRequest
    sources: Sources
    questions: RealQuestions
    fit: Float32
    judge: Float32
    real: Path
    partial: Path
    tell: Tell
    note: Note

    @property
    def vectors(self) -> Path:
        """Where the grown vectors are written."""
        return self.partial / VECTORS_NAME

    def cluster(self, path: Path) -> Clustered:
        """Clusters the vectors at `path`."""
        return cluster(
            open_precomputed(path),
            nlist=NLIST,
            seed=self.request.seed,
            on_rows=self._counted("rows assigned"),
        )

    def behaviour(self, path: Path, clustering: Clustered, questions: Float32) -> Behaviour:
        """Measures how the vectors at `path` behave."""
        found = nearest(path, questions, self._counted("rows compared"))
        return behaviour(found, clustering, questions, self.request.seed)

    def _counted(self, step: str) -> Callable[[int], None]:
        done = 0

        def on_rows(rows: int) -> None:
            nonlocal done
            done += rows
            self.tell(step, done, self.request.row_count)

        return on_rows


def grow(request: GrowRequest, data: EvaluationData, tell: Tell, note: Note) -> GrownSet:
    """Grows a set, judges it, and publishes it at `request.out`. Blocks for minutes.

    Raises `RefusedError` where no spread makes it behave as the real set, `ConfigError` where data,
    model or disk do not fit. After an error there is nothing at `request.out`.
    """
    if request.out.exists() and (not request.out.is_dir() or any(request.out.iterdir())):
        raise ConfigError(f"{request.out} is there already; remove it, or name another --out")
    if request.row_count < ROWS_MIN:
        raise ConfigError(
            f"{request.row_count} rows cannot be judged at nlist {NLIST}: ask for {ROWS_MIN} or "
            "more"
        )
    real = data.vectors_path(CORPUS)
    partial = request.out.with_name(request.out.name + ".partial")
    try:
        _make_folder(request, partial, dimension=read_vectors(real).shape[1])
        sources = load_sources(
            data,
            sentences=request.sentences,
            embedding=request.embedding,
            cache=request.cache,
            tell=tell,
        )
        note(
            f"growing from {sources.passage_count:,} passages and their "
            f"{sources.sentence_count:,} sentences"
        )
        questions = load_questions(data, request.seed)
        count = len(questions.ids)
        # The last ones fit, so that questions from the front are never fitted ones.
        fit_count = min(request.fit_questions, count // FITTED_PART)
        growth = _Growth(
            request=request,
            sources=sources,
            questions=questions,
            fit=questions.vectors[count - fit_count :],
            judge=questions.vectors[: min(request.judge_questions, count - fit_count)],
            real=real,
            partial=partial,
            tell=tell,
            note=note,
        )
        return _grow(growth)
    except OSError as error:
        raise ConfigError(
            f"cannot write {partial} ({error}); make room, or name another --out"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_folder(request: GrowRequest, partial: Path, *, dimension: int) -> None:
    """Makes the folder of the set. Raises `ConfigError` where the disk has no room for it."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    needed_bytes = request.row_count * (dimension * 2 + DOCUMENT_BYTES)
    free_bytes = shutil.disk_usage(partial).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"{request.row_count} rows take about {needed_bytes / 1e9:.1f} GB, and "
            f"{request.out.parent} has {free_bytes / 1e9:.1f} GB left: make room, or name another "
            "--out"
        )


def _grow(growth: _Growth) -> GrownSet:
    real_clustering = growth.cluster(growth.real)
    recipe, trials, clustering = _fit(growth, real_clustering)
    acceptance = Acceptance(
        real=growth.behaviour(growth.real, real_clustering, growth.judge),
        grown=growth.behaviour(growth.vectors, clustering, growth.judge),
    )
    if not acceptance.holds():
        tried = ", ".join(f"{trial.spread:.3f}" for trial in trials)
        raise RefusedError(
            f"{growth.request.row_count:,} rows do not behave as the real set (spreads tried: "
            f"{tried}): nothing was written. The table shows the differences; try another seed, "
            "or sentences if they were left out",
            acceptance,
        )
    write_documents(growth.partial, growth.sources, recipe, growth.tell)
    write_questions(growth.partial, growth.questions)
    return publish(
        growth.partial,
        growth.request.out,
        GrownSet(
            recipe=recipe,
            passages=growth.sources.passage_count,
            sentences=growth.sources.sentence_count,
            neighbours=growth.sources.neighbours.shape[1],
            trials=trials,
            questions_judged=len(growth.judge),
            questions_fitted=len(growth.fit),
            acceptance=acceptance,
            source_sha256=file_sha256(growth.real, "vectors"),
            files={},
        ),
    )


def _fit(
    growth: _Growth, real_clustering: Clustered
) -> tuple[Recipe, tuple[Trial, ...], Clustered]:
    """Writes sets until one fits or rounds are used up.

    Returns the recipe of the last, all trials, and its clusters.
    """
    request = growth.request
    real = growth.behaviour(growth.real, real_clustering, growth.fit)
    trials: list[Trial] = []
    spread = request.spread or first_spread(request.row_count)
    while True:
        recipe = Recipe(row_count=request.row_count, seed=request.seed, spread=spread)
        write_vectors(growth.vectors, growth.sources, recipe, growth.tell)
        clustering = growth.cluster(growth.vectors)
        grown = growth.behaviour(growth.vectors, clustering, growth.fit)
        found = Acceptance(real=real, grown=grown)
        trials.append(Trial(spread=spread, excess=found.ceiling_excess))
        differences = " ".join(f"{difference:+.3f}" for difference in found.ceiling_differences)
        growth.note(
            f"spread {spread:.3f}: ceilings {differences}, clusters touched "
            f"{found.touched_difference:+.1f}"
        )
        following = next_spread(trials)
        if (
            request.spread is not None
            or found.holds(FIT_MARGIN)
            or abs(following / spread - 1) < SETTLED
            or len(trials) == ROUNDS_MAX
        ):
            return recipe, tuple(trials), clustering
        spread = following
