"""Figures 1, 4 and 5: what single queries share, find in memory, and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.papers.cagr.outcome import Floats, Run
from bench.papers.cagr.plan import Method
from bench.papers.cagr.report import FigureReport

COLOURS: dict[Method, str] = {
    "edgerag": "#8a8a8a",
    "cagr-qg": "#d9a13b",
    "cagr-qgp": "#c2562e",
    "carpool": "#27567f",
}
NAMES: dict[Method, str] = {
    "edgerag": "EdgeRAG",
    "cagr-qg": "CaGR-RAG, groups",
    "cagr-qgp": "CaGR-RAG",
    "carpool": "ours",
}
FIG4_QUERIES = (100, 200)
FIG5_QUERIES = (250, 300)
PAPER = "the paper's settings and clock"


def one(report: FigureReport, **wanted: Any) -> Run:
    """Returns the run of `report` whose spec has these values; there is one."""
    runs = [
        run
        for run in report.runs
        if all(getattr(run.spec, name) == value for name, value in wanted.items())
    ]
    assert len(runs) == 1, f"{len(runs)} runs with {wanted}"
    return runs[0]


def shown(run: Run, bounds: tuple[int, int]) -> slice:
    """Returns the queries of these two numbers and between, counted from 1; the last so many where
    there are fewer.
    """
    first, last = bounds
    count = min(run.queries, last - first + 1)
    stop = min(run.queries, last)
    return slice(stop - count, stop)


def numbers(part: slice) -> range:
    """Returns the numbers of these queries, counted from 1."""
    return range(part.start + 1, part.stop + 1)


# ---- Figure 1


def draw_overlaps(picture: Any, report: FigureReport) -> None:
    """Heat maps above; what batches share below."""
    panels = picture.subplots(2, len(report.overlaps), squeeze=False)
    for overlap, above, below in zip(report.overlaps, panels[0], panels[1], strict=True):
        matrix = np.array(overlap.shown)
        count = len(matrix)
        image = above.imshow(
            matrix, cmap="Blues", vmin=0, vmax=1, origin="lower", extent=(0.5, count + 0.5) * 2
        )
        above.grid(False)
        above.set_xticks(range(1, count + 1, 3))
        above.set_yticks(range(1, count + 1, 3))
        above.set_title(
            f"{overlap.dataset}: Jaccard of C(q), the paper's settings\n"
            f"adjacent {overlap.adjacent:.0%}, any two {overlap.any_pair:.0%}, best of 99 others "
            f"{overlap.best:.0%}"
        )
        picture.colorbar(image, ax=above, shrink=0.8)
        sizes = [shared.batch for shared in overlap.shared]
        below.plot(
            sizes, [shared.reads_alone for shared in overlap.shared], "o-", color=COLOURS["edgerag"]
        )
        below.plot(
            sizes, [shared.groups for shared in overlap.shared], "s-", color=COLOURS["cagr-qgp"]
        )
        below.plot(
            sizes, [shared.distinct for shared in overlap.shared], "o-", color=COLOURS["carpool"]
        )
        below.legend(
            loc="upper left",
            labels=[
                "clusters probed, each query for itself",
                "groups of Algorithm 1",
                "distinct clusters: ours reads each once",
            ],
        )
        below.set_yscale("log")
        below.set_ylim(10, 20_000)
        below.set_xlabel("queries in a batch")
        below.set_title(f"{overlap.dataset}: what a batch shares")


# ---- Figure 4


def draw_hits(picture: Any, report: FigureReport) -> None:
    """Hit ratios of queries 100 to 200 above; below the share of bytes that no read of their own
    brought.
    """
    datasets = tuple(dict.fromkeys(run.spec.dataset for run in report.runs))
    panels = picture.subplots(2, len(datasets), sharey=True, squeeze=False)
    for dataset, above, below in zip(datasets, panels[0], panels[1], strict=True):
        runs = [run for run in report.runs if run.spec.dataset == dataset]
        for run in runs:
            if run.spec.method != "carpool":
                _line(above, run, run.series.hit_shares(run.spec.nprobe))
            _line(below, run, run.series.unread_shares())
        above.set_title(f"{dataset}: clusters found in memory\n{PAPER}")
        below.set_title(f"{dataset}: bytes that no read of its own brought\n{_bytes(runs)}")
        below.set_xlabel("query")
        above.legend()
        below.legend()


def _line(panel: Any, run: Run, values: Floats) -> None:
    part = shown(run, FIG4_QUERIES)
    label = f"{NAMES[run.spec.method]}: mean {values.mean():.0%}, least {values.min():.0%}"
    panel.plot(
        numbers(part), 100 * values[part], color=COLOURS[run.spec.method], linewidth=1, label=label
    )
    panel.set_ylim(-3, 103)
    panel.set_ylabel("%")


def _bytes(runs: Sequence[Run]) -> str:
    return "read in all, MB a query: " + ", ".join(
        f"{NAMES[run.spec.method]} {run.mb_a_query:.1f}" for run in runs
    )


# ---- Figure 5


def draw_bytes(picture: Any, report: FigureReport) -> None:
    """Bytes, latency and hits of queries 250 to 300: the published above, ours and all together
    below.
    """
    panels = picture.subplots(2, 2)
    for panel, method in ((panels[0][0], "edgerag"), (panels[0][1], "cagr-qgp")):
        run = one(report, method=method)
        _three(
            panel,
            run,
            run.series.query_ms(),
            run.series.hit_shares(run.spec.nprobe),
            "query",
            "clusters in memory",
        )
    ours = one(report, method="carpool")
    _three(
        panels[1][0],
        ours,
        ours.series.batch_ms(),
        ours.series.unread_shares(),
        "batch",
        "bytes not read for it",
    )
    _all_bytes(panels[1][1], report)


def _three(
    panel: Any, run: Run, latency_ms: Floats, hits: Floats, clock: str, hits_are: str
) -> None:
    part = shown(run, FIG5_QUERIES)
    colour = COLOURS[run.spec.method]
    read_mb = np.array(run.series.read_bytes)[part] / 1e6
    panel.bar(numbers(part), read_mb, color=colour, alpha=0.45, label="MB read for it")
    panel.plot(numbers(part), 100 * hits[part], ".", color="#3c8d4f", label=f"% {hits_are}")
    panel.set_ylabel("MB, %")
    panel.set_xlabel("query")
    other = panel.twinx()
    other.grid(False)
    other.plot(numbers(part), latency_ms[part], color="black", linewidth=1)
    other.set_ylabel("ms")
    other.set_ylim(0, None)
    full = latency_ms[hits >= 1]
    at_full = f", at 100 % hits {full.max():,.0f} ms" if len(full) and clock == "query" else ""
    panel.set_title(
        f"{NAMES[run.spec.method]}, {'the paper' if clock == 'query' else 'the asker'}'s clock "
        "(line)\n"
        f"all queries: median {np.median(latency_ms):,.0f} ms, at most {latency_ms.max():,.0f} "
        f"ms{at_full}"
    )
    panel.set_ylim(0, 1.3 * max(100.0, read_mb.max()))
    panel.legend(loc="upper left", ncols=2)


def _all_bytes(panel: Any, report: FigureReport) -> None:
    for at, run in enumerate(report.runs):
        panel.bar(at, run.mb_a_query, color=COLOURS[run.spec.method])
        words = (
            f"{run.mb_a_query:.1f} MB, {run.queries_per_s:.1f} queries/s\nbatch p99 "
            f"{run.batch_ms.p99:,.0f} ms\n"
            f"embedding {run.encode_ms:.0f} ms a query"
        )
        panel.annotate(
            words,
            (at, run.mb_a_query),
            ha="center",
            va="bottom",
            xytext=(0, 2),
            textcoords="offset points",
        )
    panel.set_xticks(range(len(report.runs)), [NAMES[run.spec.method] for run in report.runs])
    panel.margins(y=0.25)
    panel.set_title("MB read a query, prefetches included")
