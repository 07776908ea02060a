"""Decides nlist and nprobe of an index by default. Pure."""

from __future__ import annotations

import math

NPROBE_FACTOR = 2.4


def default_nlist(row_count: int) -> int:
    """Returns the square root of the row count, rounded to one digit: 100 for 16,000 rows.

    The work of a query (nlist centroids, and nprobe * rows / nlist vectors) is smallest near it.
    With one digit, nlist stays the same while a corpus grows a little.
    """
    root = max(1, math.isqrt(row_count))
    digit = int(10 ** (len(str(root)) - 1))
    return max(1, min(row_count, (root + digit // 2) // digit * digit))


def default_nprobe(nlist: int) -> int:
    """Returns 2.4 times the square root of nlist, at most nlist: 24 of 100 clusters.

    Measured with 539 FEVER claims over 16,152 passages (all-MiniLM-L6-v2, three seeds) at nlist
    100, 200 and 400: an evidence page is among the first five as often as with exact search, within
    1 point.
    """
    return max(1, min(nlist, round(NPROBE_FACTOR * math.sqrt(nlist))))
