"""Draws the choice of a hot set. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from carpool.errors import ConfigError
from searcher.hot_set_report import HotSetReport

DPI = 150


def draw(report: HotSetReport, path: Path) -> None:
    """Writes two panels: hit rate against bytes, and search time against hit rate.

    Raises `ConfigError` where the file cannot be written.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    points, choice = report.points, report.choice
    megabytes = [point.size_bytes / 1e6 for point in points]
    means = [point.mean_hit_rate for point in points]
    with pyplot.rc_context({"font.size": 8, "axes.titlesize": 9, "axes.grid": True}):
        picture = pyplot.figure(figsize=(9, 3.8), layout="constrained")
        left, right = picture.subplots(1, 2)
        left.plot(megabytes, means, label="mean of all questions")
        least = [point.least_hit_rate for point in points]
        left.plot(megabytes, least, "--", label="least of the batch")
        left.plot(choice.size_bytes / 1e6, choice.mean_hit_rate, "ro", label="chosen")
        left.set(title="Hit rate", xlabel="MB of the hot set", ylabel="hit rate", ylim=(0, 1))
        right.plot(means, [point.search_us / 1000 for point in points], label="search")
        right.plot(choice.mean_hit_rate, choice.search_us / 1000, "ro", label="chosen")
        if report.target_us:
            right.axhline(report.target_us / 2000, color="grey", ls=":", label="half of the target")
        title = "Search time of the best size of batch"
        right.set(title=title, xlabel="mean hit rate", ylabel="ms", xlim=(0, 1))
        right.set_ylim(bottom=0)
        for panel in (left, right):
            panel.legend()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.savefig(path, dpi=DPI, metadata={"Software": None})
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot write {path}: {error}; name another --plot FILE") from error
        finally:
            pyplot.close(picture)
