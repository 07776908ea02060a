"""The plot of `carpool bench search`: queries a second over memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN = 900, 560, 60
COLOURS = ("#27567f", "#c0562f", "#4a7a3a", "#7a4a8a")


class Point(NamedTuple):
    """A contestant at its setting for a recall, `group`, which has a colour."""

    name: str
    group: str
    peak_mb: float
    queries_per_s: float


def plot(points: Sequence[Point]) -> str:
    """Returns an SVG with both axes logarithmic; up and left is better. Needs a point."""
    groups = list(dict.fromkeys(point.group for point in points))
    across = _scale([point.peak_mb for point in points], MARGIN, WIDTH - 5 * MARGIN)
    up = _scale([point.queries_per_s for point in points], HEIGHT - MARGIN, MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{MARGIN} {MARGIN / 2}V{HEIGHT - 30}H{WIDTH - 20}" fill="none" stroke="#999"/>',
        f'<text x="{WIDTH - 20}" y="{HEIGHT - 36}" text-anchor="end">most memory, MB</text>',
        f'<text x="{MARGIN + 6}" y="{MARGIN / 2 + 4}">queries a second, windows of 100</text>',
    ]
    for point in points:
        x, y = across(point.peak_mb), up(point.queries_per_s)
        colour = COLOURS[groups.index(point.group) % len(COLOURS)]
        numbers = f"{point.queries_per_s:,.0f}; {point.peak_mb:,.0f} MB"
        label = f"{point.name}, {point.group}: {numbers}"
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        lines.append(
            f'<text x="{x + 7:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(label)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _scale(values: Sequence[float], start: float, stop: float) -> Callable[[float], float]:
    low, high = math.log(min(values)), math.log(max(values))
    step = (stop - start) / max(high - low, 1e-9)
    return lambda value: start + (math.log(value) - low) * step
