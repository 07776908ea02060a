"""Figures 2, 6 and 7: latencies, on the paper's clock above and on the asker's below."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.papers.cagr.draw_queries import COLOURS, NAMES, PAPER, numbers, one, shown
from bench.papers.cagr.outcome import Floats, Run
from bench.papers.cagr.plan import Method
from bench.papers.cagr.report import FigureReport
from bench.papers.cagr.stated import P99_MS

FIG2_QUERIES = (150, 250)
STYLES = ("-", "--", ":", "-.")


def _cdf(panel: Any, values: Floats, **style: Any) -> None:
    panel.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), linewidth=1.2, **style)


def _finish(panel: Any, title: str, x: str) -> None:
    panel.set_title(title)
    panel.set_xlabel(x)
    panel.set_ylabel("share of queries")
    panel.legend(loc="lower right")


# ---- Figure 2


def draw_nprobes(picture: Any, report: FigureReport) -> None:
    """(a) the latency by nprobe, (b) hits and latency at the largest; below the same beside
    ours.
    """
    panels = picture.subplots(2, 2)
    published = [run for run in report.runs if run.spec.method == "edgerag"]
    ours = [run for run in report.runs if run.spec.method == "carpool"]
    shades = np.linspace(0.35, 0.95, len(published))
    for run, shade in zip(published, shades, strict=True):
        _cdf(
            panels[0][0],
            run.series.query_ms(),
            color=str(1 - shade),
            label=f"nprobe {run.spec.nprobe}",
        )
    entries = published[0].spec.entries
    _finish(
        panels[0][0],
        f"(a) latency, EdgeRAG's cache of {entries} entries\n{PAPER}",
        "ms, encoding to top-k",
    )
    largest = published[-1]
    latency_ms, hits = largest.series.query_ms(), largest.series.hit_shares(largest.spec.nprobe)
    _hits_and_latency(panels[0][1], largest, latency_ms, hits)
    panels[0][1].set_title(
        f"(b) nprobe {largest.spec.nprobe}: median {np.median(latency_ms):,.0f} ms, most "
        f"{latency_ms.max():,.0f} ms "
        f"(at {hits[latency_ms.argmax()]:.0%} hits)\nthe paper: median 480 ms; query 198: 840 ms "
        "at 42 % hits"
    )
    for run, style in zip(ours, STYLES, strict=False):
        beside = next(other for other in published if other.spec.nprobe == run.spec.nprobe)
        for each in (beside, run):
            colour, label = (
                COLOURS[each.spec.method],
                f"{NAMES[each.spec.method]}, nprobe {each.spec.nprobe}",
            )
            _cdf(panels[1][0], each.series.batch_ms(), color=colour, linestyle=style, label=label)
    _finish(panels[1][0], "latency, the asker's clock", "ms, arrival of the batch to top-k")
    last = ours[-1]
    _hits_and_latency(panels[1][1], last, last.series.batch_ms(), last.series.unread_shares())
    panels[1][1].set_title(
        f"ours, nprobe {last.spec.nprobe}: bytes not read for it, and latency by the asker's "
        "clock\n"
        f"MB a query: {NAMES['edgerag']} {largest.mb_a_query:,.1f}, ours {last.mb_a_query:,.1f}; "
        "queries/s: "
        f"{largest.queries_per_s:.1f}, {last.queries_per_s:.1f}"
    )


def _hits_and_latency(panel: Any, run: Run, latency_ms: Floats, hits: Floats) -> None:
    part = shown(run, FIG2_QUERIES)
    panel.bar(numbers(part), 100 * hits[part], color=COLOURS[run.spec.method], alpha=0.45)
    panel.set_ylabel("% (bars)")
    panel.set_ylim(0, 103)
    panel.set_xlabel("query")
    other = panel.twinx()
    other.grid(False)
    other.plot(numbers(part), latency_ms[part], color="black", linewidth=1)
    other.set_ylim(0, None)
    other.set_ylabel("ms (line)")


# ---- Figure 6


def draw_cdfs_and_means(picture: Any, report: FigureReport) -> None:
    """(a) distributions with their last 5 %, (b) means; for both clocks."""
    panels = picture.subplots(2, 2, width_ratios=(2, 1))
    datasets = tuple(dict.fromkeys(run.spec.dataset for run in report.runs))
    methods: tuple[Method, ...] = ("edgerag", "cagr-qgp")
    for row, shown_methods in zip(panels, (methods, (*methods, "carpool")), strict=True):
        is_paper = shown_methods == methods
        tail = row[0].inset_axes((0.4, 0.1, 0.3, 0.42))
        tail.set_ylim(0.95, 1.0)
        tail.tick_params(labelsize=6)
        for dataset, style in zip(datasets, STYLES, strict=False):
            for method in shown_methods:
                run = one(report, dataset=dataset, method=method)
                values = run.series.query_ms() if is_paper else run.series.batch_ms()
                label = (
                    f"{NAMES[method]}, {dataset}: p99 "
                    f"{np.percentile(values, 99):,.0f}{_stated(run, is_paper)}"
                )
                for panel in (row[0], tail):
                    _cdf(panel, values, color=COLOURS[method], linestyle=style, label=label)
        row[0].set_title(f"(a) {PAPER}" if is_paper else "(a) the asker's clock, ours beside")
        row[0].set_xlabel(
            "ms, encoding to top-k" if is_paper else "ms, arrival of the batch to top-k"
        )
        row[0].set_ylabel("share of queries")
        row[0].margins(x=0.02)
        row[0].legend(loc="lower right", fontsize=6)
        _means(row[1], report, datasets, shown_methods, is_paper)


def _stated(run: Run, is_paper: bool) -> str:
    if not is_paper:
        return ""
    edgerag_ms, cagr_ms = P99_MS[run.spec.dataset]
    return f" ms (paper: {edgerag_ms if run.spec.method == 'edgerag' else cagr_ms:,.0f})"


def _means(
    panel: Any,
    report: FigureReport,
    datasets: tuple[str, ...],
    methods: tuple[Method, ...],
    is_paper: bool,
) -> None:
    width = 0.8 / len(methods)
    for at, method in enumerate(methods):
        runs = [one(report, dataset=dataset, method=method) for dataset in datasets]
        means = [
            float((run.series.query_ms() if is_paper else run.series.batch_ms()).mean())
            for run in runs
        ]
        bars = panel.bar(
            np.arange(len(datasets)) + (at - (len(methods) - 1) / 2) * width,
            means,
            width,
            color=COLOURS[method],
            label=NAMES[method],
        )
        panel.bar_label(bars, [f"{mean:,.0f}" for mean in means], fontsize=7)
    panel.set_xticks(range(len(datasets)), datasets)
    panel.set_ylabel("ms")
    panel.margins(y=0.2)
    panel.set_title(
        "(b) mean latency\nthe paper's means are not stated"
        if is_paper
        else "(b) mean latency, the asker's clock"
    )
    panel.legend(ncols=len(methods), loc="upper center")


# ---- Figure 7


def draw_thetas(picture: Any, report: FigureReport) -> None:
    """p99 by theta, with and without prefetch, on both clocks; bytes; where the prefetch's time
    goes.
    """
    panels = picture.subplots(2, 2)
    thetas = sorted(
        {run.spec.similarity_min for run in report.runs if run.spec.similarity_min is not None}
    )
    methods: tuple[Method, ...] = ("cagr-qg", "cagr-qgp")
    labels = {"cagr-qg": "QG: groups", "cagr-qgp": "QGP: groups and prefetch"}
    for method in methods:
        runs = [one(report, similarity_min=theta, method=method) for theta in thetas]
        style = {"color": COLOURS[method], "label": labels[method], "marker": "o"}
        x = [100 * theta for theta in thetas]
        panels[0][0].plot(
            x, [run.query_ms.p99 for run in runs if run.query_ms is not None], **style
        )
        panels[1][0].plot(x, [run.batch_ms.p99 for run in runs], **style)
        panels[1][1].plot(x, [run.mb_a_query for run in runs], **style)
        panels[0][1].plot(x, [run.totals.groups / len(run.batch_sizes) for run in runs], **style)
    prefetches = [one(report, similarity_min=theta, method="cagr-qgp") for theta in thetas]
    for theta, run in zip(thetas, prefetches, strict=True):
        words = f"{run.totals.prefetch_us / run.totals.duration_us:.0%}"
        panels[0][1].annotate(
            words,
            (100 * theta, run.totals.groups / len(run.batch_sizes)),
            xytext=(0, 6),
            textcoords="offset points",
        )
    ours = one(report, method="carpool")
    panels[1][0].axhline(
        ours.batch_ms.p99, color=COLOURS["carpool"], label="ours: no groups, no theta"
    )
    panels[1][1].axhline(ours.mb_a_query, color=COLOURS["carpool"], label="ours")
    titles = (
        (
            panels[0][0],
            f"p99, {PAPER}\nthe paper: alike at 90 %, QGP up to 3.1 times less at 10 %",
            "ms",
        ),
        (
            panels[0][1],
            "groups in a batch; written beside: the share of the run's time\nthat goes to "
            "prefetching",
            "groups",
        ),
        (panels[1][0], "p99, the asker's clock", "ms"),
        (panels[1][1], "MB read a query, prefetches included", "MB"),
    )
    for panel, title, unit in titles:
        panel.set_title(title)
        panel.set_xlabel("theta, %")
        panel.set_ylabel(unit)
        panel.set_ylim(0, None)
        panel.legend()
