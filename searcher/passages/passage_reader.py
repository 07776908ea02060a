"""Reads the passages of results: the entries of their documents, then the documents.

The entries, 24 bytes a document, are read like the documents: in memory they would take more of the
budget than the buffers do, 24 MB for a million documents, to save one round of reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from carpool.disk.documents import ENTRY_BYTES, DocumentEntry, DocumentTable, Passage
from carpool.errors import CorruptionError, ReadError
from searcher.passages.range_reader import RangeReader
from searcher.plan.passage_reads import share_out
from searcher.store.reader import close_all

OFFSETS_FILE, DOCUMENTS_FILE = 0, 1
"""Numbers of `documents.idx` and `documents.dat` among the files that are read."""
READ_TOGETHER_BYTES = 4 << 20
"""Documents that are in memory at a time, or those of one query, if it has more."""

T = TypeVar("T")


class PassageReader:
    """Implements `RowPassages` by reads. It owns what it is given."""

    def __init__(self, table: DocumentTable, ranges: RangeReader) -> None:
        """`ranges` reads `documents.idx` and `documents.dat`."""
        self._table = table
        self._ranges = ranges

    def read(
        self, results: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, list[Passage] | ReadError]]:
        """See `RowPassages`."""
        self._ranges.ask_again()
        wanted = [self._table.numbers(rows) for rows in results]
        entries, errors = self._entries(sorted({number for one in wanted for number in one}))
        sizes = {number: entry.size_bytes for number, entry in entries.items()}
        for together in share_out(wanted, sizes, READ_TOGETHER_BYTES):
            numbers = {number for position in together for number in wanted[position]}
            documents, damaged = self._documents(
                [entries[number] for number in sorted(numbers & entries.keys())]
            )
            damaged |= errors
            for position in together:
                failed = [number for number in wanted[position] if number in damaged]
                if failed:
                    yield position, damaged[failed[0]]
                else:
                    yield position, [documents[number] for number in wanted[position]]

    def check_integrity(self) -> None:
        """See `RowPassages`."""
        self._ranges.reader.check_integrity()

    def close(self) -> None:
        """Closes the files, too; see `RowPassages`."""
        close_all([self._ranges.reader], self._ranges.reader.waker)

    def _entries(
        self, numbers: Sequence[int]
    ) -> tuple[dict[int, DocumentEntry], dict[int, ReadError]]:
        """Returns the entries of documents, and the errors of the others."""
        starts = [self._table.entry_offset_bytes(one) for one in numbers]
        contents = self._ranges.read(OFFSETS_FILE, starts, [ENTRY_BYTES] * len(numbers))
        return _parse(numbers, contents, [partial(self._table.entry, one) for one in numbers])

    def _documents(
        self, entries: Sequence[DocumentEntry]
    ) -> tuple[dict[int, Passage], dict[int, ReadError]]:
        """Returns documents by number, and the errors of the others."""
        starts = [entry.offset_bytes for entry in entries]
        sizes = [entry.size_bytes for entry in entries]
        contents = self._ranges.read(DOCUMENTS_FILE, starts, sizes)
        parsers = [partial(self._table.document, entry) for entry in entries]
        return _parse([entry.number for entry in entries], contents, parsers)


def _parse(
    numbers: Sequence[int],
    contents: Sequence[bytearray | ReadError],
    parsers: Sequence[Callable[[bytearray], T]],
) -> tuple[dict[int, T], dict[int, ReadError]]:
    """Returns what was read and is correct, and the errors of the rest, by number."""
    parsed: dict[int, T] = {}
    errors: dict[int, ReadError] = {}
    for number, content, parse in zip(numbers, contents, parsers, strict=True):
        if not isinstance(content, bytearray):
            errors[number] = content
            continue
        try:
            parsed[number] = parse(content)
        except CorruptionError as error:
            errors[number] = error
    return parsed, errors
