"""Which runs a figure needs, with the settings of the paper. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

FigureDataset = Literal["nq", "hotpotqa", "fever"]
"""The questions; the passages are those of the index."""
DATASETS: tuple[FigureDataset, ...] = get_args(FigureDataset)

Method = Literal["edgerag", "cagr-qg", "cagr-qgp", "carpool"]
"""`edgerag`: query by query in order of arrival. `cagr-qg`: in groups. `cagr-qgp`: in groups, with
the prefetch between them. `carpool`: cluster by cluster.
"""

NUMBERS = (1, 2, 4, 5, 6, 7)
"""The figures that show measurements; Fig. 3 is a drawing."""


class PaperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the paper: sections 2.4 (Fig. 1 and 2) and 4.1 (the rest)."""

    nprobe: int = 10
    entries: int = 40
    similarity_min: float = 0.5
    nprobes_fig2: tuple[int, ...] = (10, 20, 40)
    entries_fig2: int = 50
    thetas_fig7: tuple[float, ...] = (0.1, 0.5, 0.9)
    batch_min: int = 20
    batch_max: int = 100
    top_k: int = 10


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run: one method over the questions of one dataset.

    `entries`: clusters in the cache; `carpool` gets the bytes of as many mean clusters.
    `similarity_min`: the paper's theta, None without grouping.
    """

    dataset: FigureDataset
    method: Method
    nprobe: int
    entries: int
    similarity_min: float | None
    batch_min: int
    batch_max: int
    top_k: int
    queries: int
    warm_up_s: float
    seed: int

    @property
    def name(self) -> str:
        """Names the run among those of one folder."""
        theta = "" if self.similarity_min is None else f"-theta{round(100 * self.similarity_min)}"
        return f"{self.dataset}-{self.method}{theta}-nprobe{self.nprobe}-entries{self.entries}"


class FigureLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of each run. `queries`: measured, at most."""

    queries: int = 400
    warm_up_s: float = 60.0
    seed: int = 0


def runs_of(figure: int, load: FigureLoad, settings: PaperSettings) -> tuple[RunSpec, ...]:
    """Returns the runs that a figure shows. None for Fig. 1, which searches nothing."""
    return tuple(dict.fromkeys(_runs(figure, load, settings)))


def _runs(figure: int, load: FigureLoad, settings: PaperSettings) -> Iterator[RunSpec]:
    if figure == 2:
        for nprobe in settings.nprobes_fig2:
            yield _spec(
                "hotpotqa", "edgerag", load, settings, nprobe=nprobe, entries=settings.entries_fig2
            )
        for nprobe in dict.fromkeys((settings.nprobes_fig2[0], settings.nprobes_fig2[-1])):
            yield _spec(
                "hotpotqa", "carpool", load, settings, nprobe=nprobe, entries=settings.entries_fig2
            )
    if figure in (4, 5, 6):
        for dataset in DATASETS if figure != 5 else ("hotpotqa",):
            yield _spec(dataset, "edgerag", load, settings)
            yield _spec(dataset, "cagr-qgp", load, settings)
            yield _spec(dataset, "carpool", load, settings)
    if figure == 7:
        for theta in settings.thetas_fig7:
            yield _spec("hotpotqa", "cagr-qg", load, settings, theta=theta)
            yield _spec("hotpotqa", "cagr-qgp", load, settings, theta=theta)
        yield _spec("hotpotqa", "carpool", load, settings)


def _spec(
    dataset: FigureDataset,
    method: Method,
    load: FigureLoad,
    settings: PaperSettings,
    *,
    nprobe: int | None = None,
    entries: int | None = None,
    theta: float | None = None,
) -> RunSpec:
    return RunSpec(
        dataset=dataset,
        method=method,
        nprobe=nprobe or settings.nprobe,
        entries=entries or settings.entries,
        similarity_min=(theta or settings.similarity_min) if method.startswith("cagr") else None,
        batch_min=settings.batch_min,
        batch_max=settings.batch_max,
        top_k=settings.top_k,
        queries=load.queries,
        warm_up_s=load.warm_up_s,
        seed=load.seed,
    )
