"""Which runs a figure shows, and the report: what the paper states, the runs, and an oracle."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import data_file
from bench.core.run import begin
from bench.core.spread import Spread
from bench.data.evaluation import EvaluationData, find_data
from bench.data.index import BenchIndex
from bench.papers.cagr.method import ClusterByCluster, Method
from bench.papers.cagr.options import CagrOptions
from bench.papers.cagr.overlap import BATCH, Overlap, overlap_of
from bench.papers.cagr.published import Prefetch, PublishedSearch
from bench.papers.cagr.run import FILES, Asker, RunFigures, load_questions
from bench.papers.cagr.stated import STATED
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex, open_index
from carpool.embedding import Embedder, EmbeddingSettings, load_embedder
from carpool.errors import ConfigError

NPROBE, ENTRIES, THETA = 10, 40, 0.5
"""Section 4.1."""
PREFETCHES: dict[str, Prefetch] = {"CaGR groups": "none", "CaGR": "after", "CaGR best": "beside"}
"""The methods that search in groups."""
METHODS = ("EdgeRAG", "CaGR", "CaGR best", "Carpool")


class Run(msgspec.Struct, frozen=True):
    """One method over the questions of one dataset. `theta`: of the methods with groups."""

    dataset: str
    method: str
    nprobe: int = NPROBE
    entries: int = ENTRIES
    theta: float = THETA

    def open(self, index: OpenIndex) -> Method:
        """Returns the method, with no cluster in memory. Raises `ConfigError`."""
        if max(self.nprobe, self.entries) > len(index.extents):
            raise ConfigError(
                f"the figure needs nprobe {self.nprobe} and a cache of {self.entries} clusters, "
                f"and the index has {len(index.extents)}: name one of nlist 100, as in the paper"
            )
        if self.method == "Carpool":
            return ClusterByCluster(index, entries=self.entries)
        return PublishedSearch(
            index,
            entries=self.entries,
            similarity_min=self.theta if self.method in PREFETCHES else None,
            prefetch=PREFETCHES.get(self.method, "none"),
        )


THREE_SETS = tuple(Run(dataset, method) for dataset in FILES for method in METHODS)
RUNS: dict[int, tuple[Run, ...]] = {
    2: (
        *(Run("hotpotqa", "EdgeRAG", nprobe, 50) for nprobe in (10, 20, 40)),
        *(Run("hotpotqa", "Carpool", nprobe, 50) for nprobe in (10, 40)),
    ),
    4: THREE_SETS,
    5: tuple(Run("hotpotqa", method) for method in METHODS),
    6: THREE_SETS,
    7: (
        *(Run("hotpotqa", "CaGR groups", theta=theta) for theta in (0.1, 0.5, 0.9)),
        *(Run("hotpotqa", "CaGR", theta=theta) for theta in (0.1, 0.5, 0.9)),
        Run("hotpotqa", "Carpool"),
    ),
}
"""The figures that show measurements of a search; Fig. 1 searches nothing, Fig. 3 is a drawing."""


class MeasuredRun(msgspec.Struct, frozen=True):
    """A run and what it measured."""

    run: Run
    figures: RunFigures


def run(options: CagrOptions) -> bool:
    """Measures and prints a figure; returns whether every promise was kept. Blocks for minutes."""
    figure = options.figure
    if figure not in (1, *RUNS):
        raise ConfigError("which figure? Name 1, 2, 4, 5, 6 or 7")
    run = begin("paper cagr", options)
    data, index = find_data(options.data), open_index(options.index)
    runs: list[MeasuredRun] = []
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            embedder = _embedder(index, options.model)
            overlaps = _overlaps(index, embedder, data) if figure == 1 else []
            for one in RUNS.get(figure, ()):
                run.note(f"{one.dataset}, {one.method}, nprobe {one.nprobe}")
                runs.append(MeasuredRun(one, _measured(one, index, embedder, data, options)))
    finally:
        index.close()
    used = FILES if overlaps else dict.fromkeys(one.run.dataset for one in runs)

    def show(console: Console) -> None:
        console.print(_overlap_table(overlaps) if overlaps else _run_table(figure, runs))
        for line in STATED[figure]:
            console.print(f"the paper: {line}", soft_wrap=True)

    return run.finish(
        show,
        promises={
            "bytes by the kernel agree with our own count within 2 % or 16 MiB": all(
                one.figures.bytes_agree for one in runs
            )
        },
        results={"stated": STATED[figure], "runs": runs, "overlaps": overlaps},
        data=tuple(data_file(data.questions_path(FILES[dataset])) for dataset in used),
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )


def _measured(
    run: Run, index: OpenIndex, embedder: Embedder, data: EvaluationData, options: CagrOptions
) -> RunFigures:
    measured, warm_up = load_questions(data, run.dataset, options.queries)
    method = run.open(index)
    try:
        asker = Asker(method, index, embedder, run.nprobe)
        asker.warm_up(warm_up, np.random.default_rng([options.seed, 1]), options.warm_up_s)
        return asker.measure(measured, np.random.default_rng(options.seed), run.entries)
    finally:
        method.close()


def _overlaps(index: OpenIndex, embedder: Embedder, data: EvaluationData) -> list[Overlap]:
    found = []
    for dataset in FILES:
        texts = load_questions(data, dataset, 5 * BATCH)[0]
        if len(texts) < BATCH:
            raise ConfigError(f"{dataset}: {len(texts)} questions do not make a batch of {BATCH}")
        probes = probe(index.centroids, embedder.encode(texts), NPROBE)
        found.append(overlap_of(dataset, probes, THETA))
    return found


def _embedder(index: OpenIndex, model: str | None) -> Embedder:
    settings = EmbeddingSettings(model=model or index.manifest.embedding_model_name)
    embedder = load_embedder(settings)
    if embedder.fingerprint != index.manifest.embedding_model:
        raise ConfigError(
            f"{index.dir} was built with another embedding model than {settings.model!r} "
            f"({index.manifest.embedding_model_name}): name that with --model"
        )
    embedder.encode(["A first call is slow."])
    return embedder


def _run_table(figure: int, runs: list[MeasuredRun]) -> Table:
    table = Table(title=f"Figure {figure}: ms by query (the paper's clock) and by batch")
    columns: dict[str, Callable[[MeasuredRun], str]] = {
        "dataset": lambda one: one.run.dataset,
        "method": lambda one: one.run.method,
        "nprobe": lambda one: str(one.run.nprobe),
        "theta": lambda one: f"{one.run.theta:.0%}" if one.run.method in PREFETCHES else "-",
        "groups": lambda one: f"{one.figures.groups:.1f}",
        "hits (least)": lambda one: f"{one.figures.hits:.0%} ({one.figures.hits_least:.0%})",
        "query mean, p50, p99": lambda one: _spread(one.figures.query_ms),
        "batch mean, p50, p99": lambda one: _spread(one.figures.batch_ms),
        "queries/s": lambda one: f"{one.figures.queries_per_s:,.1f}",
        "MB a query": lambda one: f"{one.figures.bytes_a_query / 1e6:,.1f}",
        "prefetched": lambda one: f"{one.figures.prefetched:.0%}",
        "oracle MB": lambda one: f"{one.figures.oracle_bytes_a_query / 1e6:,.1f}",
    }
    for name in columns:
        table.add_column(name, justify="left" if name in ("dataset", "method") else "right")
    for one in runs:
        table.add_row(*(cell(one) for cell in columns.values()))
    return table


def _spread(found: Spread | None) -> str:
    return "-" if found is None else f"{found.mean:,.1f}, {found.p50:,.1f}, {found.p99:,.1f}"


def _overlap_table(overlaps: list[Overlap]) -> Table:
    headings = (
        "questions,adjacent,any two,best of 99 others,best over 60 %,groups,distinct clusters"
    )
    table = Table(
        *headings.split(","), title="Figure 1: overlap of the clusters of two questions, Jaccard"
    )
    for found in overlaps:
        shares = (found.adjacent, found.any_pair, found.best, found.over_60)
        table.add_row(
            found.dataset,
            *(f"{share:.1%}" for share in shares),
            f"{found.groups:.1f}",
            f"{found.distinct:.1f}",
        )
    return table
