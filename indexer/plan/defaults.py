"""Decides nlist and nprobe of an index by default. Pure."""

from __future__ import annotations

import math

FLAT_ROWS_MAX = 50_000
"""Rows that are searched whole: their vectors fit in memory, and probing would lose results."""
NLIST_FACTOR = 4
NPROBE_FACTOR = 2.3


def default_nlist(row_count: int) -> int:
    """Returns 1 up to `FLAT_ROWS_MAX` rows, then 4 times their square root, to one digit.

    4,000 for a million. To scan the codes of a query's probes costs less in more clusters, and to
    find the probes costs more; with one digit, nlist stays the same while a corpus grows a little.
    """
    if row_count <= FLAT_ROWS_MAX:
        return 1
    wanted = NLIST_FACTOR * math.isqrt(row_count)
    digit = int(10 ** (len(str(wanted)) - 1))
    return (wanted + digit // 2) // digit * digit


def default_nprobe(nlist: int) -> int:
    """Returns 2.3 times the square root of nlist, at most nlist: 145 of 4,000 clusters.

    Then about 95 of 100 of the ten nearest rows of all are in the probed clusters.
    """
    return max(1, min(nlist, round(NPROBE_FACTOR * math.sqrt(nlist))))
