"""The plot of `carpool bench search`: a point for each contestant and figure, whiskers over seeds,
grey where computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.core.spread import Range
from bench.retrieval.summary import Row, Summary
from carpool.errors import ConfigError

FIGURES = (
    ("queries_per_s", 1.0, "queries a second"),
    ("bytes_a_query", 1e6, "MB read a query"),
    ("p99_ms", 1.0, "p99, ms"),
)
"""A panel each: figure, unit, title. Logarithmic: contestants differ by orders of magnitude."""


def plot_summary(summary: Summary, path: Path) -> None:
    """Writes a PNG. Raises `ConfigError` where matplotlib is not installed or the file cannot be
    written.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "the plot needs matplotlib, which is not installed: pip install 'carpool[bench]', or "
            "leave out --plot; JSON and table have every figure"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    windows = list(dict.fromkeys(row.window for row in summary.rows))
    most = max(sum(row.window == window for row in summary.rows) for window in windows)
    figure, panels = pyplot.subplots(
        len(windows),
        len(FIGURES),
        squeeze=False,
        figsize=(5 * len(FIGURES), (1 + 0.32 * most) * len(windows)),
    )
    for window, of_window in zip(windows, panels, strict=True):
        rows = [row for row in summary.rows if row.window == window]
        for at, ((name, unit, title), panel) in enumerate(zip(FIGURES, of_window, strict=True)):
            _points(panel, rows, name, unit)
            panel.set_title(f"{title}, windows of {window}", fontsize=9)
            if at:
                panel.set_yticklabels([])
    figure.tight_layout()
    try:
        figure.savefig(
            path, dpi=130, metadata={"Software": None}
        )  # the same figures, the same bytes
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another --out") from error
    finally:
        pyplot.close(figure)


def _points(panel: Any, rows: list[Row], name: str, unit: float) -> None:
    for position, row in enumerate(rows):
        found: Range | None = row.figures.get(name)
        if found is None or found.median <= 0:
            continue  # it failed, or a logarithm has no place for it
        middle, low, high = found.median / unit, found.min / unit, found.max / unit
        colour = "#999999" if row.is_computed else "#27567f"
        panel.errorbar(
            [middle],
            [position],
            xerr=[[middle - low], [high - middle]],
            fmt="o",
            markersize=4,
            capsize=2,
            color=colour,
        )
        panel.annotate(
            f"{middle:,.0f}" if middle >= 1_000 else f"{middle:.3g}",
            (high, position),
            xytext=(4, -2.5),
            textcoords="offset points",
            fontsize=6,
            color=colour,
        )
    panel.set_yticks(range(len(rows)), [row.contestant for row in rows], fontsize=7)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    if any(row.figures[name].median > 0 for row in rows if name in row.figures):
        panel.set_xscale("log")
    panel.margins(x=0.15)
    panel.grid(axis="x", color="#dddddd", linewidth=0.5)
    panel.tick_params(axis="x", labelsize=7)
