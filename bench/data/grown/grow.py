"""Growing a set: write vectors, see how they behave, change the spread, write again; then judge,
and publish or refuse.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from bench.data.evaluation import CORPUS, EvaluationData, Float32, read_vectors
from bench.data.grown.behaviour import (
    NLIST,
    Acceptance,
    Behaviour,
    Clustering,
    Nearest,
    behaviour,
    cluster,
    nearest,
)
from bench.data.grown.fit import Trial, first_spread, next_spread
from bench.data.grown.fitted import FITTED_PART
from bench.data.grown.output import (
    VECTORS_NAME,
    GrownSet,
    publish,
    write_documents,
    write_questions,
    write_vectors,
)
from bench.data.grown.recipe import Recipe
from bench.data.grown.sentences import Tell
from bench.data.grown.sources import Questions, Sources, load_questions, load_sources
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from indexer.corpus import file_sha256

ROWS_MIN = 10 * NLIST
NLIST_FINE = 1000
FINE_ROWS_MIN = 10 * NLIST_FINE
DOCUMENT_BYTES = 250
"""About what a line of the corpus takes."""
FIT_MARGIN = 0.5
"""The search goes on until the fit is within this part of the tolerances: other questions then
judge.
"""
SETTLED = 0.03
"""It also ends where the next spread would hardly be another one: more is not to be had from one
number.
"""

Note = Callable[[str], None]


class Refused(ConfigError):
    """A grown set does not behave as the real one; nothing was published. `acceptance`: by how
    much.
    """

    def __init__(self, message: str, acceptance: Acceptance) -> None:
        super().__init__(message)
        self.acceptance = acceptance


class GrowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to grow, and where to."""

    out: Path
    row_count: int
    seed: int
    cache: Path
    embedding: EmbeddingSettings = EmbeddingSettings()
    sentences: bool = True
    spread: Annotated[
        float | None,
        msgspec.Meta(description="Given: only this spread is tried, as an earlier run found it."),
    ] = None
    rounds_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="Spreads that are tried. Too low refuses a set that would fit, too high "
            "takes long where none fits.",
        ),
    ] = 8
    fit_questions: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="Questions that the spread is fitted with; others judge. Too low chases "
            "noise, too high leaves few to judge and takes time.",
        ),
    ] = 2000
    judge_questions: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="Questions that the acceptance is measured with. Too low is noisy, too "
            "high takes time.",
        ),
    ] = 4000


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """A growth under way. `fit`, `judge`: (n, dim) float32, questions of the two purposes, none in
    both.
    """

    request: GrowRequest
    sources: Sources
    questions: Questions
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


def grow(request: GrowRequest, data: EvaluationData, tell: Tell, note: Note) -> GrownSet:
    """Grows a set, judges it, and publishes it at `request.out`; returns what is in its
    `grown.json`. Blocks for minutes.

    Raises `Refused` where no spread made it behave as the real set, `ConfigError` where data, model
    or disk do not do. Whatever goes wrong, nothing is at `request.out`, and nothing is left but
    embedded sentences in `request.cache`.
    """
    _check(request)
    real = data.vectors_path(CORPUS)
    partial = request.out.with_name(request.out.name + ".partial")
    try:
        _make_room(request, partial, dimension=read_vectors(real).shape[1])
        sources = load_sources(
            data,
            sentences=request.sentences,
            embedding=request.embedding,
            cache=request.cache,
            tell=tell,
        )
        note(
            f"growing from {sources.passage_count:,} passages and {sources.sentence_count:,} "
            "sentences of theirs"
        )
        questions = load_questions(data, request.seed)
        # The last ones fit, so that whoever takes questions from the front gets those that nothing
        # was fitted to.
        fit_count = min(request.fit_questions, len(questions.ids) // FITTED_PART)
        judge_count = min(request.judge_questions, len(questions.ids) - fit_count)
        work = _Work(
            request=request,
            sources=sources,
            questions=questions,
            fit=questions.vectors[len(questions.ids) - fit_count :],
            judge=questions.vectors[:judge_count],
            real=real,
            partial=partial,
            tell=tell,
            note=note,
        )
        return _grow(work)
    except OSError as error:
        raise ConfigError(
            f"cannot write {partial} ({error}); make room, or name another --out"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(request: GrowRequest) -> None:
    if request.out.exists() and (not request.out.is_dir() or any(request.out.iterdir())):
        raise ConfigError(f"{request.out} is there already; remove it, or name another --out")
    if request.row_count < ROWS_MIN:
        raise ConfigError(
            f"{request.row_count} rows cannot be judged at nlist {NLIST}: ask for {ROWS_MIN} or "
            "more"
        )


def _make_room(request: GrowRequest, partial: Path, *, dimension: int) -> None:
    """Makes the folder of the set to be, once there is room for it."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    needed_bytes = request.row_count * (dimension * 2 + DOCUMENT_BYTES)
    free_bytes = shutil.disk_usage(partial).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"{request.row_count} rows take about {needed_bytes / 1e9:.1f} GB, and "
            f"{request.out.parent} has "
            f"{free_bytes / 1e9:.1f} GB left: make room, or name another --out"
        )


def _grow(work: _Work) -> GrownSet:
    recipe, trials, clustering = _fit(work)
    real_nearest, grown_nearest = (
        _nearest(work, path, work.judge) for path in (work.real, work.vectors)
    )
    acceptance = Acceptance(
        real=_behaviour(work, real_nearest, _cluster(work, work.real, NLIST), work.judge),
        grown=_behaviour(work, grown_nearest, clustering, work.judge),
    )
    if not acceptance.holds():
        tried = ", ".join(f"{trial.spread:.3f}" for trial in trials)
        raise Refused(
            f"{work.request.row_count:,} rows do not behave as the real set (spreads tried: "
            f"{tried}): nothing was written. The table says by how much; try another seed, more "
            "rounds, or sentences if they were left out",
            acceptance,
        )
    fine = None
    if min(acceptance.real.row_count, acceptance.grown.row_count) >= FINE_ROWS_MIN:
        real, grown = (
            _behaviour(work, found, _cluster(work, path, NLIST_FINE), work.judge)
            for path, found in ((work.real, real_nearest), (work.vectors, grown_nearest))
        )
        fine = Acceptance(real=real, grown=grown)
    write_documents(work.partial, work.sources, recipe, work.tell)
    write_questions(work.partial, work.questions)
    return publish(
        work.partial,
        work.request.out,
        GrownSet(
            recipe=recipe,
            passages=work.sources.passage_count,
            sentences=work.sources.sentence_count,
            neighbours=work.sources.neighbours.shape[1],
            trials=trials,
            questions_judged=len(work.judge),
            questions_fitted=len(work.fit),
            acceptance=acceptance,
            fine=fine,
            source_sha256=file_sha256(work.real, "vectors"),
            files={},
        ),
    )


def _fit(work: _Work) -> tuple[Recipe, tuple[Trial, ...], Clustering]:
    """Writes sets until one fits, or rounds are used up; returns the recipe of the last, all
    trials, and its clusters.
    """
    request = work.request
    real = _behaviour(
        work, _nearest(work, work.real, work.fit), _cluster(work, work.real, NLIST), work.fit
    )
    trials: list[Trial] = []
    spread = request.spread or first_spread(request.row_count)
    while True:
        recipe = Recipe(row_count=request.row_count, seed=request.seed, spread=spread)
        write_vectors(work.vectors, work.sources, recipe, work.tell)
        clustering = _cluster(work, work.vectors, NLIST)
        grown = _behaviour(work, _nearest(work, work.vectors, work.fit), clustering, work.fit)
        found = Acceptance(real=real, grown=grown)
        trials.append(Trial(spread=spread, excess=found.ceiling_excess))
        differences = " ".join(f"{difference:+.3f}" for difference in found.ceiling_differences)
        work.note(
            f"spread {spread:.3f}: ceilings {differences}, clusters touched "
            f"{found.touched_difference:+.1f}"
        )
        following = next_spread(trials)
        is_settled = abs(following / spread - 1) < SETTLED
        if (
            request.spread is not None
            or found.holds(FIT_MARGIN)
            or is_settled
            or len(trials) == request.rounds_max
        ):
            return recipe, tuple(trials), clustering
        spread = following


def _nearest(work: _Work, path: Path, questions: Float32) -> Nearest:
    return nearest(path, questions, _counted(work, "rows compared"))


def _cluster(work: _Work, path: Path, nlist: int) -> Clustering:
    return cluster(path, nlist, work.request.seed, _counted(work, "rows assigned"))


def _behaviour(
    work: _Work, found: Nearest, clustering: Clustering, questions: Float32
) -> Behaviour:
    return behaviour(found, clustering, questions, work.request.seed)


def _counted(work: _Work, step: str) -> Callable[[int], None]:
    """What adds up the rows of a pass and tells it."""
    done = 0

    def on_rows(rows: int) -> None:
        nonlocal done
        done += rows
        work.tell(step, done, work.request.row_count)

    return on_rows
