"""The plot of `carpool bench search`: queries a second and bytes a query, a bar for each contestant, whiskers over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.search.statistics import Range
from bench.search.summary import Row, Summary
from carpool.errors import ConfigError

FIGURES = (
    ("queries_per_s", 1.0, "queries a second"),
    ("bytes_a_query", 1e6, "MB read a query"),
    ("p99_ms", 1.0, "p99, ms"),
)
"""A panel each: figure, unit, title. Logarithmic: contestants differ by orders of magnitude."""


def plot_summary(summary: Summary, path: Path) -> None:
    """Writes a PNG. Raises `ConfigError` where matplotlib is not installed or the file cannot be written."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "the plot needs matplotlib, which is not installed: pip install matplotlib, or leave out --plot; JSON and table have "
            "every figure"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    windows = list(dict.fromkeys(row.window for row in summary.rows))
    most = max(sum(row.window == window for row in summary.rows) for window in windows)
    figure, panels = pyplot.subplots(
        len(windows), len(FIGURES), squeeze=False, figsize=(5 * len(FIGURES), (1 + 0.32 * most) * len(windows))
    )
    for window, of_window in zip(windows, panels, strict=True):
        rows = [row for row in summary.rows if row.window == window]
        for at, ((name, unit, title), panel) in enumerate(zip(FIGURES, of_window, strict=True)):
            _bars(panel, rows, name, unit)
            panel.set_title(f"{title}, windows of {window}", fontsize=9)
            if at:
                panel.set_yticklabels([])
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=130, metadata={"Software": None})  # the same figures, the same bytes
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another --out") from error
    finally:
        pyplot.close(figure)


def _bars(panel: Any, rows: list[Row], name: str, unit: float) -> None:
    found: list[Range | None] = [row.figures.get(name) for row in rows]
    positions = range(len(rows))
    medians = [one.median / unit if one else 0.0 for one in found]
    whiskers = [
        [(one.median - one.min) / unit if one else 0.0 for one in found],
        [(one.max - one.median) / unit if one else 0.0 for one in found],
    ]
    colours = ["#bbbbbb" if row.is_computed else "#4878a8" for row in rows]
    panel.barh(positions, medians, xerr=whiskers, color=colours, ecolor="#333333", capsize=2)
    panel.set_yticks(list(positions), [row.contestant for row in rows], fontsize=7)
    panel.invert_yaxis()
    if any(median > 0 for median in medians):
        panel.set_xscale("log")
    panel.tick_params(axis="x", labelsize=7)
