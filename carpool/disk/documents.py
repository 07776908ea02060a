"""The stored documents: external id, title, text and metadata by row number.

`documents.idx` has 24 bytes a row (offset, size, zero, checksum); `documents.dat` the documents as
MessagePack arrays, without gaps. The checksum is XXH3-64 over the document, seeded with the build
id of the documents, the row number and the rest of the entry. So a document of another row or
corpus does not match it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import xxhash

from carpool.arrays import UInt32
from carpool.disk.files import check_size, damage, open_regular, read_exactly
from carpool.disk.manifest import Manifest
from carpool.errors import CorruptionError

DOCUMENTS_NAME = "documents.dat"
OFFSETS_NAME = "documents.idx"
DOCUMENT_BYTES_MAX = 16 << 20
"""Limit of a document, so that a damaged entry does not cause an allocation of gigabytes."""

_ENTRY = struct.Struct("<QIIQ")  # offset_bytes, size_bytes, zero (kept for flags), checksum
ENTRY_BYTES = _ENTRY.size
_SEED = struct.Struct("<QQQII")  # build_id, row, offset_bytes, size_bytes, zero


class Passage(msgspec.Struct, frozen=True, array_like=True):
    """A passage of the corpus. One without metadata is stored without that field."""

    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any] | None = None


_decoder = msgspec.msgpack.Decoder(Passage)


class DocumentWriter:
    """Writes documents in the order of rows, from 0. Buffered; durable after `close`.

    `build_id`: 64 bits of what the documents depend on (`carpool.disk.segments.build_id_of`).
    """

    def __init__(self, folder: Path, build_id: int) -> None:
        self._build_id = build_id
        self._documents = (folder / DOCUMENTS_NAME).open("wb")
        self._offsets = (folder / OFFSETS_NAME).open("wb")
        self._encoder = msgspec.msgpack.Encoder()
        self._end_bytes = 0
        self.row_count = 0

    def append(self, document: Passage) -> int:
        """Adds a document; returns its row. Raises `ValueError` beyond `DOCUMENT_BYTES_MAX`."""
        without = (document.doc_id, document.title, document.text)
        content = self._encoder.encode(document if document.metadata else without)
        if len(content) > DOCUMENT_BYTES_MAX:
            raise ValueError(
                f"document {document.doc_id!r} has {len(content)} bytes; at most "
                f"{DOCUMENT_BYTES_MAX} are stored"
            )
        row = self.row_count
        self._documents.write(content)
        checksum = _checksum(self._build_id, row, self._end_bytes, content)
        self._offsets.write(_ENTRY.pack(self._end_bytes, len(content), 0, checksum))
        self._end_bytes += len(content)
        self.row_count += 1
        return row

    def close(self) -> None:
        """Flushes and fsyncs both files."""
        for file in (self._documents, self._offsets):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def abandon(self) -> None:
        """Closes both files of an interrupted build, without making them durable."""
        self._documents.close()
        self._offsets.close()


class DocumentEntry(NamedTuple):
    """Where a document is stored, and the checksum that it must have."""

    number: int
    offset_bytes: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentTable:
    """What the bytes of the two files mean, and whether they are right. It reads nothing.

    `document_count` documents are numbered in the order of the corpus; `documents_bytes` is the
    size of `documents.dat`. `of_places`: (places,) uint32, the document of each row
    (`carpool.disk.document_rows`); None: the row is its number.
    """

    offsets_path: str
    documents_path: str
    document_count: int
    documents_bytes: int
    build_id: int
    of_places: UInt32 | None = None

    def numbers(self, rows: Sequence[int]) -> list[int]:
        """Returns the number of the document of each row. Raises `IndexError`."""
        if self.of_places is not None:
            numbers: list[int] = self.of_places[list(rows)].tolist()
            return numbers
        return [int(row) for row in rows]

    def entry_offset_bytes(self, number: int) -> int:
        """Returns where the entry of a document is, `ENTRY_BYTES` of `documents.idx`.

        Raises `IndexError` for a document that does not exist.
        """
        if not 0 <= number < self.document_count:
            raise IndexError(f"there is no row {number}; the store has {self.document_count}")
        return number * ENTRY_BYTES

    def entry(self, number: int, content: bytes | bytearray) -> DocumentEntry:
        """Returns what the bytes of an entry say. Raises `CorruptionError`."""
        offset_bytes, size_bytes, zero, checksum = _ENTRY.unpack(content)
        if (
            zero
            or size_bytes > DOCUMENT_BYTES_MAX
            or offset_bytes + size_bytes > self.documents_bytes
        ):
            raise _damaged(self.offsets_path, number * ENTRY_BYTES, number)
        return DocumentEntry(number, offset_bytes, size_bytes, checksum)

    def document(self, entry: DocumentEntry, content: bytes | bytearray) -> Passage:
        """Returns the document that `content` is. Raises `CorruptionError` where it is another."""
        number, offset_bytes, _, checksum = entry
        if _checksum(self.build_id, number, offset_bytes, content) != checksum:
            raise _damaged(self.documents_path, offset_bytes, number)
        try:
            return _decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _damaged(self.documents_path, offset_bytes, number) from None


class DocumentStore:
    """Reads documents by row number, two reads each. `get` blocks, on any thread.

    For the indexer. The searcher reads many documents at once (`searcher.passages`).
    """

    def __init__(
        self, folder: Path, row_count: int, build_id: int, of_places: UInt32 | None = None
    ) -> None:
        """`of_places`: the document of each row (`carpool.disk.document_rows`); None: its row."""
        documents_path, offsets_path = str(folder / DOCUMENTS_NAME), str(folder / OFFSETS_NAME)
        self._documents: int = open_regular(documents_path)
        try:
            self._offsets: int = open_regular(offsets_path)
        except BaseException:
            os.close(self._documents)
            raise
        self.table = DocumentTable(
            offsets_path=offsets_path,
            documents_path=documents_path,
            document_count=row_count,
            documents_bytes=os.fstat(self._documents).st_size,
            build_id=build_id,
            of_places=of_places,
        )

    @classmethod
    def open(
        cls, index_dir: Path, manifest: Manifest, of_places: UInt32 | None = None
    ) -> DocumentStore:
        """Returns the store of a complete index. Reads the first document to check the build.

        An empty index has none. Raises `CorruptionError` where a file is missing, has another size
        or is of another build.
        """
        for name in (DOCUMENTS_NAME, OFFSETS_NAME):
            check_size(index_dir / name, manifest.file(name).size_bytes)
        if manifest.file(OFFSETS_NAME).size_bytes != manifest.row_count * ENTRY_BYTES:
            raise damage(index_dir / OFFSETS_NAME, f"does not have {manifest.row_count} rows")
        store = cls(index_dir, manifest.row_count, manifest.documents_build_id, of_places)
        try:
            if manifest.row_count:
                store.document(0)
        except BaseException:
            store.close()
            raise
        return store

    @property
    def offsets_descriptor(self) -> int:
        """The open `documents.idx`; the store closes it."""
        return self._offsets

    def get(self, rows: Sequence[int]) -> list[Passage]:
        """Returns the documents of `rows`, in their order.

        Raises `CorruptionError` on damage, `IndexError` for a row that does not exist.
        """
        return [self.document(number) for number in self.table.numbers(rows)]

    def document(self, number: int) -> Passage:
        """Returns a document by its number in the corpus; raises as `get`."""
        table = self.table
        at_bytes = table.entry_offset_bytes(number)
        content = read_exactly(self._offsets, ENTRY_BYTES, at_bytes, table.offsets_path)
        entry = table.entry(number, content)
        content = read_exactly(
            self._documents, entry.size_bytes, entry.offset_bytes, table.documents_path
        )
        return table.document(entry, content)

    def close(self) -> None:
        """Closes the files; a second call does nothing."""
        for descriptor in (self._documents, self._offsets):
            if descriptor >= 0:
                os.close(descriptor)
        self._documents = self._offsets = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _damaged(path: str, offset_bytes: int, number: int) -> CorruptionError:
    what = f"the document of row {number} is damaged at byte {offset_bytes}, or of another build"
    return damage(path, f"is wrong: {what}", offset_bytes)


def _checksum(build_id: int, row: int, offset_bytes: int, content: bytes | bytearray) -> int:
    seed = xxhash.xxh3_64_intdigest(_SEED.pack(build_id, row, offset_bytes, len(content), 0))
    return xxhash.xxh3_64_intdigest(content, seed)
