"""How far two counts differ. Pure."""

from __future__ import annotations


def differ_by_share(one: float, other: float) -> float:
    """Returns how far two counts are apart, as a share of the larger; 0 where both are 0."""
    larger = max(abs(one), abs(other))
    return abs(one - other) / larger if larger else 0.0
