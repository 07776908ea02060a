"""Which document a row is of: one array.

Rows are numbered by their place in the index, documents in the order of the corpus. A place at the
end of a cluster may have no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from carpool.arrays import Int64, UInt32
from carpool.disk.extents import ClusterExtent
from carpool.disk.files import damage, write_atomically
from carpool.disk.manifest import Manifest
from carpool.disk.pages import PageLayout

DOCUMENT_ROWS_NAME = "documents.rows"
NO_ROW = (1 << 32) - 1


def place_count(layout: PageLayout, extents: Sequence[ClusterExtent]) -> int:
    """Returns how many places the pages of all clusters have."""
    return sum(extent.page_count for extent in extents) * layout.rows_per_page


def first_rows(layout: PageLayout, extents: Sequence[ClusterExtent]) -> Int64:
    """Returns the number of the first row of each cluster: (nlist,) int64."""
    return np.array([extent.first_page for extent in extents], np.int64) * layout.rows_per_page


def documents_of_places(
    layout: PageLayout, extents: Sequence[ClusterExtent], documents: Int64 | UInt32
) -> UInt32:
    """Returns the document of each place: (place_count,) uint32, `NO_ROW` where there is no row.

    `documents`: (row_count,), those of the rows of all clusters in order.
    """
    places = np.full(place_count(layout, extents), NO_ROW, "<u4")
    start = 0
    for extent in extents:
        first = extent.first_page * layout.rows_per_page
        stop = start + extent.row_count
        places[first : first + extent.row_count] = documents[start:stop]
        start = stop
    return places


def places_of_numbers(of_places: UInt32, count: int) -> UInt32:
    """Returns the place of each document: (places,) uint32 -> (count,) uint32.

    `of_places`: as `documents_of_places` returns it, of an index with `count` rows.
    """
    places = np.flatnonzero(of_places != NO_ROW).astype(np.uint32)
    numbers = np.empty(count, np.uint32)
    numbers[of_places[places]] = places
    return numbers


def write_document_rows(index_dir: Path, places: UInt32) -> None:
    """Writes the array. Atomic, durable."""
    write_atomically(index_dir / DOCUMENT_ROWS_NAME, places.tobytes())


def read_document_rows(
    index_dir: Path, manifest: Manifest, extents: Sequence[ClusterExtent]
) -> UInt32:
    """Returns the document of each place: (place_count,) uint32. Raises `CorruptionError`.

    4 bytes a row, and they stay in memory.
    """
    size_bytes = 4 * place_count(manifest.layout(), extents)
    content = manifest.read(index_dir, DOCUMENT_ROWS_NAME, size_bytes)
    places: UInt32 = np.frombuffer(content, "<u4")
    if np.count_nonzero(places < manifest.row_count) != manifest.row_count:
        what = f"is wrong: it does not have the {manifest.row_count} rows of the index"
        raise damage(index_dir / DOCUMENT_ROWS_NAME, what)
    return places
