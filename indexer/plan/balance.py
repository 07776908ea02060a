"""Decides which clusters are split and which are dissolved, in pairs: nlist stays. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

MAX_FACTOR = 2.5
"""A larger cluster, of times the mean, is split: it takes memory, and its queries are the slowest.

A lower factor separates similar passages, which costs recall.
"""
MIN_FACTOR = 0.25
"""A smaller cluster is dissolved: a probe of it finds little."""


class Balance(NamedTuple):
    """`dissolved` clusters lose their centroids; each (cluster, pieces) of `splits` gets pieces."""

    dissolved: tuple[int, ...]
    splits: tuple[tuple[int, int], ...]


def plan_balance(counts: Sequence[int]) -> Balance:
    """Returns the clusters to split and to dissolve, given their rows; none if all are even.

    A cluster is too large above `MAX_FACTOR` times the mean, too small below `MIN_FACTOR` times it.
    While there is one of either, the smallest cluster is dissolved and the cluster with the largest
    pieces gets one more piece, if that piece is larger than the dissolved cluster. Ties are broken
    by cluster number. O(n log n).
    """
    mean = sum(counts) / len(counts)
    smallest_first = sorted(range(len(counts)), key=lambda cluster: (counts[cluster], cluster))
    pieces = dict.fromkeys(range(len(counts)), 1)
    heap = [(-float(count), cluster) for cluster, count in enumerate(counts)]
    heapq.heapify(heap)
    dissolved: list[int] = []
    for smallest in smallest_first:
        piece_rows, largest = -heap[0][0], heap[0][1]
        if piece_rows <= MAX_FACTOR * mean and counts[smallest] >= MIN_FACTOR * mean:
            break
        if counts[largest] / (pieces[largest] + 1) <= max(1, counts[smallest]):
            break
        pieces[largest] += 1
        heapq.heapreplace(heap, (-counts[largest] / pieces[largest], largest))
        dissolved.append(smallest)
    splits = tuple((cluster, count) for cluster, count in pieces.items() if count > 1)
    return Balance(tuple(dissolved), splits)


def unevenness(counts: Sequence[int]) -> float:
    """Returns the rows outside the limits of the factors, over all clusters; 0 if none."""
    mean = sum(counts) / len(counts)
    return sum(max(0.0, count - MAX_FACTOR * mean, MIN_FACTOR * mean - count) for count in counts)
