"""Figure 1: which clusters two questions share, and what a batch shares in total. Pure."""

from __future__ import annotations

import msgspec
import numpy as np

from bench.data.oracles import Int32
from bench.papers.cagr.plan import FigureDataset, PaperSettings
from grouper.plan.jaccard import jaccard_matrix, similar_groups

SHOWN = 20
BATCHES = (20, 40, 60, 80, 100)


class BatchSharing(msgspec.Struct, frozen=True, kw_only=True):
    """Means over batches of `batch` questions. `reads_alone`: probes of all questions; `distinct`:
    different clusters among them; `groups`: of Algorithm 1.
    """

    batch: int
    reads_alone: float
    distinct: float
    groups: float


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Jaccard indexes (Eq. 2) of the questions of a dataset. `shown`: of the first questions.

    `adjacent`, `any_pair`: means over consecutive questions, and over all pairs of a batch of 100.
    `best`: the mean of each question with the most similar one of its batch; `over_60`: the share
    whose best is over 0.6.
    """

    dataset: FigureDataset
    questions: int
    shown: tuple[tuple[float, ...], ...]
    adjacent: float
    any_pair: float
    best: float
    over_60: float
    shared: tuple[BatchSharing, ...]


def overlap_of(dataset: FigureDataset, probes: Int32, settings: PaperSettings) -> Overlap:
    """Returns the overlaps. `probes`: (questions, nprobe) int32, one largest batch at least."""
    largest = max(BATCHES)
    if len(probes) < largest:
        raise ValueError(f"{len(probes)} questions do not make a batch of {largest}")
    windows = [jaccard_matrix(part.tolist()) for part in _cut(probes, largest)]
    off = ~np.eye(largest, dtype=bool)
    best = np.concatenate([np.where(off, window, 0).max(axis=1) for window in windows])
    shown = windows[0][:SHOWN, :SHOWN]
    return Overlap(
        dataset=dataset,
        questions=len(windows) * largest,
        shown=tuple(tuple(row) for row in shown.round(4).tolist()),
        adjacent=float(np.mean([np.diagonal(window, 1).mean() for window in windows])),
        any_pair=float(np.mean([window[off].mean() for window in windows])),
        best=float(best.mean()),
        over_60=float((best > 0.6).mean()),
        shared=tuple(_shared(probes, batch, settings) for batch in BATCHES),
    )


def _cut(probes: Int32, batch: int) -> list[Int32]:
    return [probes[at : at + batch] for at in range(0, len(probes) - batch + 1, batch)]


def _shared(probes: Int32, batch: int, settings: PaperSettings) -> BatchSharing:
    parts = _cut(probes, batch)
    groups = [
        similar_groups(part.tolist(), jaccard_similarity_min=settings.similarity_min)
        for part in parts
    ]
    return BatchSharing(
        batch=batch,
        reads_alone=float(batch * probes.shape[1]),
        distinct=float(np.mean([len(np.unique(part)) for part in parts])),
        groups=float(np.mean([len(group) for group in groups])),
    )
