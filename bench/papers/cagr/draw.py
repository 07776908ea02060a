"""Drawing a figure out of its JSON: the paper's settings and clock above, ours below, the same
colours throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.papers.cagr.draw_latency import draw_cdfs_and_means, draw_nprobes, draw_thetas
from bench.papers.cagr.draw_queries import draw_bytes, draw_hits, draw_overlaps
from bench.papers.cagr.report import FigureReport
from carpool.errors import ConfigError

DPI = 110

DRAWN: dict[int, tuple[tuple[float, float], Callable[[Any, FigureReport], None]]] = {
    1: ((13, 7), draw_overlaps),
    2: ((13, 7.5), draw_nprobes),
    4: ((14, 6.5), draw_hits),
    5: ((13, 7.5), draw_bytes),
    6: ((13, 8), draw_cdfs_and_means),
    7: ((11, 7.5), draw_thetas),
}


def draw(report: FigureReport, path: Path) -> None:
    """Writes a PNG. Raises `ConfigError` where matplotlib is not installed or the file cannot be
    written.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "the picture needs matplotlib, which is not installed: pip install 'carpool[bench]', "
            "and draw the JSON that was written with --plot-only"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    size, drawn = DRAWN[report.figure]
    with pyplot.rc_context(
        {
            "font.size": 8,
            "axes.titlesize": 9,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e4e4e4",
        }
    ):
        picture = pyplot.figure(figsize=size, layout="constrained")
        try:
            drawn(picture, report)
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.savefig(
                path, dpi=DPI, metadata={"Software": None}
            )  # the same figures, the same bytes
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}; give another --png"
            ) from error
        finally:
            pyplot.close(picture)
