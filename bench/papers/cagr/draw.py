"""The pictures of the figures: the paper's settings and clock, and ours with the same colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.papers.cagr.outcome import FigureRun, Floats
from bench.papers.cagr.plan import Method
from carpool.errors import ConfigError

if TYPE_CHECKING:
    from bench.papers.cagr.command import FigureResults

DPI = 110
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
    "carpool": "Carpool",
}
PAPER = "the paper's clock"
ASKER = "the asker's clock"
STYLES = ("-", "--", ":", "-.")
FIG4_QUERIES = (100, 200)
FIG5_QUERIES = (250, 300)


def draw(results: FigureResults, path: Path) -> None:
    """Writes a PNG. Raises `ConfigError` without matplotlib, or where it cannot be written."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "the picture needs matplotlib, which is not installed: pip install 'carpool[bench]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 8, "axes.titlesize": 9, "axes.grid": True}):
        picture = pyplot.figure(figsize=(13, 7.5), layout="constrained")
        try:
            DRAWN[results.figure](picture, results)
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.savefig(path, dpi=DPI, metadata={"Software": None})
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; give another --out") from (
                error
            )
        finally:
            pyplot.close(picture)


def _draw_overlaps(picture: Any, results: FigureResults) -> None:
    """Figure 1: heat maps."""
    panels = picture.subplots(1, len(results.overlaps), squeeze=False)[0]
    for overlap, panel in zip(results.overlaps, panels, strict=True):
        matrix = np.array(overlap.shown)
        extent = (0.5, len(matrix) + 0.5) * 2
        image = panel.imshow(matrix, cmap="Blues", vmin=0, vmax=1, origin="lower", extent=extent)
        panel.grid(False)
        panel.set_title(
            f"{overlap.dataset}: Jaccard of C(q)\nadjacent {overlap.adjacent:.0%}, any two "
            f"{overlap.any_pair:.0%}, best of 99 others {overlap.best:.0%}"
        )
        picture.colorbar(image, ax=panel, shrink=0.6)


def _draw_nprobes(picture: Any, results: FigureResults) -> None:
    """Figure 2: (a) latency by nprobe, (b) hits and latency at the largest; ours below."""
    panels = picture.subplots(2, 2)
    published = [run for run in results.runs if run.spec.method == "edgerag"]
    ours = [run for run in results.runs if run.spec.method == "carpool"]
    for row, (runs, clock) in enumerate(((published, PAPER), (published + ours, ASKER))):
        for number, run in enumerate(runs):
            label = f"{NAMES[run.spec.method]}, nprobe {run.spec.nprobe}"
            style = STYLES[number % len(STYLES)]
            _cdf(panels[row][0], _latency_ms(run, clock), run, label=label, linestyle=style)
        _finish(panels[row][0], f"latency, {clock}", "ms", "share of queries")
    _hits_and_latency(panels[0][1], published[-1], PAPER, (150, 250))
    _hits_and_latency(panels[1][1], ours[-1], ASKER, (150, 250))


def _draw_hits(picture: Any, results: FigureResults) -> None:
    """Figure 4: hit ratios of queries 100 to 200; below, bytes that no own read brought."""
    datasets = _datasets(results)
    panels = picture.subplots(2, len(datasets), sharey=True, squeeze=False)
    for column, dataset in enumerate(datasets):
        for run in results.runs:
            if run.spec.dataset != dataset:
                continue
            if run.spec.method != "carpool":
                _line(panels[0][column], run, run.series.hit_shares(run.spec.nprobe))
            _line(panels[1][column], run, run.series.unread_shares())
        _finish(panels[0][column], f"{dataset}: clusters found in memory", "query", "%")
        _finish(panels[1][column], f"{dataset}: bytes not read for the query", "query", "%")


def _draw_bytes(picture: Any, results: FigureResults) -> None:
    """Figure 5: hits and latency of queries 250 to 300, and the bytes of all."""
    panels = picture.subplots(2, 2).ravel()
    for panel, run in zip(panels, results.runs, strict=False):
        clock = ASKER if run.spec.method == "carpool" else PAPER
        _hits_and_latency(panel, run, clock, FIG5_QUERIES)
    _bars(panels[3], results.runs, [run.mb_a_query for run in results.runs], "MB read a query")


def _draw_cdfs_and_means(picture: Any, results: FigureResults) -> None:
    """Figure 6: (a) distributions, (b) means; for both clocks."""
    panels = picture.subplots(2, 2, width_ratios=(2, 1))
    datasets = _datasets(results)
    for row, clock in enumerate((PAPER, ASKER)):
        runs = [run for run in results.runs if clock == ASKER or run.spec.method != "carpool"]
        for run in runs:
            values = _latency_ms(run, clock)
            p99 = f"p99 {np.percentile(values, 99):,.0f}"
            label = f"{NAMES[run.spec.method]}, {run.spec.dataset}: {p99}"
            style = STYLES[datasets.index(run.spec.dataset) % len(STYLES)]
            _cdf(panels[row][0], values, run, label=label, linestyle=style)
        _finish(panels[row][0], f"(a) {clock}", "ms", "share of queries")
        means = [float(_latency_ms(run, clock).mean()) for run in runs]
        _bars(panels[row][1], runs, means, f"(b) mean latency in ms, {clock}")


def _draw_thetas(picture: Any, results: FigureResults) -> None:
    """Figure 7: p99 by theta with and without prefetch on both clocks, bytes, groups."""
    panels = picture.subplots(2, 2)
    ours = next(run for run in results.runs if run.spec.method == "carpool")
    figures: tuple[tuple[Any, str, Callable[[FigureRun], float]], ...] = (
        (panels[0][0], f"p99 in ms, {PAPER}", lambda run: run.query_ms.p99 if run.query_ms else 0),
        (panels[0][1], "groups in a batch", lambda run: run.totals.groups / len(run.batch_sizes)),
        (panels[1][0], f"p99 in ms, {ASKER}", lambda run: run.batch_ms.p99),
        (panels[1][1], "MB read a query", lambda run: run.mb_a_query),
    )
    methods: tuple[Method, ...] = ("cagr-qg", "cagr-qgp")
    for panel, title, value in figures:
        for method in methods:
            runs = sorted(
                (run for run in results.runs if run.spec.method == method),
                key=lambda run: run.spec.similarity_min or 0.0,
            )
            thetas = [100 * (run.spec.similarity_min or 0.0) for run in runs]
            label = "groups and prefetch" if method == "cagr-qgp" else "groups"
            values = [value(run) for run in runs]
            panel.plot(thetas, values, marker="o", color=COLOURS[method], label=label)
        if panel in panels[1]:
            panel.axhline(value(ours), color=COLOURS["carpool"], label=NAMES["carpool"])
        panel.set_ylim(0, None)
        _finish(panel, title, "theta, %", "")


DRAWN: dict[int, Callable[[Any, FigureResults], None]] = {
    1: _draw_overlaps,
    2: _draw_nprobes,
    4: _draw_hits,
    5: _draw_bytes,
    6: _draw_cdfs_and_means,
    7: _draw_thetas,
}


def _latency_ms(run: FigureRun, clock: str) -> Floats:
    return run.series.query_ms() if clock == PAPER else run.series.batch_ms()


def _datasets(results: FigureResults) -> list[str]:
    return list(dict.fromkeys(run.spec.dataset for run in results.runs))


def _shown(run: FigureRun, bounds: tuple[int, int]) -> slice:
    """The queries of these numbers and between, counted from 1; the last ones of a shorter run."""
    first, last = bounds
    stop = min(run.queries, last)
    return slice(stop - min(run.queries, last - first + 1), stop)


def _cdf(panel: Any, values: Floats, run: FigureRun, **style: Any) -> None:
    shares = np.arange(1, len(values) + 1) / len(values)
    panel.plot(np.sort(values), shares, color=COLOURS[run.spec.method], **style)


def _line(panel: Any, run: FigureRun, values: Floats) -> None:
    part = _shown(run, FIG4_QUERIES)
    label = f"{NAMES[run.spec.method]}: mean {values.mean():.0%}, least {values.min():.0%}"
    x = range(part.start + 1, part.stop + 1)
    panel.plot(x, 100 * values[part], color=COLOURS[run.spec.method], label=label)


def _hits_and_latency(panel: Any, run: FigureRun, clock: str, bounds: tuple[int, int]) -> None:
    """Hits as bars (of Carpool: bytes not read for the query), latency as a line."""
    is_ours = run.spec.method == "carpool"
    hits = run.series.unread_shares() if is_ours else run.series.hit_shares(run.spec.nprobe)
    latency_ms, part = _latency_ms(run, clock), _shown(run, bounds)
    x = range(part.start + 1, part.stop + 1)
    panel.bar(x, 100 * hits[part], color=COLOURS[run.spec.method], alpha=0.45)
    other = panel.twinx()
    other.grid(False)
    other.plot(x, latency_ms[part], color="black", linewidth=1)
    other.set_ylabel(f"ms (line), {clock}")
    panel.set_xlabel("query")
    panel.set_ylabel("% (bars): " + ("bytes not read for it" if is_ours else "clusters in memory"))
    panel.set_title(
        f"{NAMES[run.spec.method]}, nprobe {run.spec.nprobe}: median "
        f"{np.median(latency_ms):,.0f} ms, at most {latency_ms.max():,.0f} ms; "
        f"{run.mb_a_query:.1f} MB a query"
    )


def _bars(panel: Any, runs: Sequence[FigureRun], values: Sequence[float], title: str) -> None:
    labels = [f"{NAMES[run.spec.method]}\n{run.spec.dataset}" for run in runs]
    colours = [COLOURS[run.spec.method] for run in runs]
    bars = panel.bar(range(len(runs)), values, color=colours)
    panel.bar_label(bars, [f"{value:,.1f}" for value in values], fontsize=7)
    panel.set_xticks(range(len(runs)), labels, fontsize=6)
    panel.set_title(title)


def _finish(panel: Any, title: str, x: str, y: str) -> None:
    panel.set_title(title)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.legend(fontsize=6)
