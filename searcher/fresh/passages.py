"""The passages of results: those of the base are read, and fresh ones are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from carpool.disk.documents import Passage
from carpool.errors import ReadError
from searcher.fresh.rows import FreshView
from searcher.row_source import RowPassages


def read_passages(
    base: RowPassages, results: Sequence[Sequence[int]], fresh: Sequence[FreshView | None]
) -> Iterator[tuple[int, list[Passage] | ReadError]]:
    """Yields the passages of each result, with its position; see `RowPassages.read`.

    `fresh`: the fresh rows that each result may have.
    """
    of_base = [
        [row for row in rows if view is None or row < view.rows.first_row]
        for rows, view in zip(results, fresh, strict=True)
    ]
    for position, read in base.read(of_base):
        rows, view = results[position], fresh[position]
        if view is None or isinstance(read, ReadError):
            yield position, read
            continue
        own = [row for row in rows if row >= view.rows.first_row]
        known = dict(zip((*of_base[position], *own), (*read, *view.passages(own)), strict=True))
        yield position, [known[row] for row in rows]
