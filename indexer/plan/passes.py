"""Decides the passes of a build that keep it within its memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.disk.pages import PageLayout

ROW_OVERHEAD_BYTES = 24
"""Memory of a collected row without its vector: its number, its position, and the number again."""


def sample_rows_max(
    row_count: int, nlist: int, *, dimension: int, rows_per_cluster: int, bytes_max: int
) -> int:
    """Returns how many rows train k-means: `rows_per_cluster` a cluster, within `bytes_max`.

    Raises `ValueError` where that is less than one a cluster.
    """
    count = min(row_count, nlist * rows_per_cluster, bytes_max // (dimension * 4))
    if count < nlist:
        raise ValueError(f"{count} rows cannot train {nlist} clusters")
    return count


def pass_bytes(layout: PageLayout, row_count: int) -> int:
    """Returns the memory of the rows of a cluster until they are written."""
    return row_count * (layout.row_bytes + ROW_OVERHEAD_BYTES)


def encode_bytes(layout: PageLayout, row_count: int) -> int:
    """Returns the memory that writing a cluster needs in addition to its rows."""
    copy_bytes = row_count * layout.dimension * 4 if layout.vector_dtype == "float16" else 0
    return copy_bytes + 2 * layout.page_count(row_count) * layout.page_bytes


def memory_min_bytes(layout: PageLayout, row_counts: Sequence[int]) -> int:
    """Returns the least `memory_bytes` for clusters of `row_counts` rows."""
    needed = (pass_bytes(layout, count) + encode_bytes(layout, count) for count in row_counts)
    return max(needed, default=0)


def plan_passes(
    layout: PageLayout, row_counts: Sequence[int], *, memory_bytes: int
) -> tuple[range, ...]:
    """Returns for each pass the positions in `row_counts` of the clusters that it collects.

    `memory_bytes` is at least `memory_min_bytes`, so each cluster fits alone.
    """
    passes = []
    first, collected_bytes, encode_max_bytes = 0, 0, 0
    for position, row_count in enumerate(row_counts):
        rows_bytes, needed_bytes = pass_bytes(layout, row_count), encode_bytes(layout, row_count)
        assert rows_bytes + needed_bytes <= memory_bytes, "a cluster does not fit alone"
        if collected_bytes + rows_bytes + max(encode_max_bytes, needed_bytes) > memory_bytes:
            passes.append(range(first, position))
            first, collected_bytes, encode_max_bytes = position, 0, 0
        collected_bytes += rows_bytes
        encode_max_bytes = max(encode_max_bytes, needed_bytes)
    if first < len(row_counts):
        passes.append(range(first, len(row_counts)))
    return tuple(passes)
