"""The document store: external id, title and text by row number, two small reads a document.

`documents.idx` has 24 bytes a row (offset, size, zero, checksum); `documents.dat` the documents as
MessagePack arrays, without gaps. The checksum is XXH3-64 over the document, seeded with the build
id of the documents, the row number and the rest of the entry. So a document of another row or
corpus does not match it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

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


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A passage of the corpus."""

    doc_id: str
    title: str
    text: str


_decoder = msgspec.msgpack.Decoder(Document)


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

    def append(self, document: Document) -> int:
        """Adds a document; returns its row. Raises `ValueError` beyond `DOCUMENT_BYTES_MAX`."""
        content = self._encoder.encode(document)
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


class DocumentStore:
    """Reads documents by row number, two reads each. `get` blocks, on any thread."""

    def __init__(
        self,
        folder: Path,
        row_count: int,
        build_id: int,
        of_places: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """`of_places`: the document of each row (`carpool.disk.document_rows`); None: its row."""
        self._of_places = of_places
        self.row_count = row_count
        self._build_id = build_id
        self.path = str(folder / DOCUMENTS_NAME)
        self.offsets_path = str(folder / OFFSETS_NAME)
        self._documents: int = open_regular(self.path)
        try:
            self._offsets: int = open_regular(self.offsets_path)
        except BaseException:
            os.close(self._documents)
            raise
        self._size_bytes = os.fstat(self._documents).st_size

    @classmethod
    def open(
        cls,
        index_dir: Path,
        manifest: Manifest,
        of_places: npt.NDArray[np.uint32] | None = None,
    ) -> DocumentStore:
        """Returns the store of a complete index. Reads the first document to check the build.

        Raises `CorruptionError` where a file is missing, has another size or is of another build.
        """
        for name in (DOCUMENTS_NAME, OFFSETS_NAME):
            check_size(index_dir / name, manifest.file(name).size_bytes)
        if manifest.file(OFFSETS_NAME).size_bytes != manifest.row_count * _ENTRY.size:
            raise damage(index_dir / OFFSETS_NAME, f"does not have {manifest.row_count} rows")
        store = cls(index_dir, manifest.row_count, manifest.documents_build_id, of_places)
        try:
            store.document(0)
        except BaseException:
            store.close()
            raise
        return store

    @property
    def offsets_descriptor(self) -> int:
        """The open `documents.idx`; the store closes it."""
        return self._offsets

    def get(self, rows: Sequence[int]) -> list[Document]:
        """Returns the documents of `rows`, in their order.

        Raises `CorruptionError` on damage, `IndexError` for a row that does not exist.
        """
        if self._of_places is not None:
            return [self.document(number) for number in self._of_places[list(rows)].tolist()]
        return [self.document(int(row)) for row in rows]

    def document(self, row: int) -> Document:
        """Returns a document by its number in the corpus; raises as `get`."""
        if not 0 <= row < self.row_count:
            raise IndexError(f"there is no row {row}; the store has {self.row_count}")
        entry = read_exactly(self._offsets, _ENTRY.size, row * _ENTRY.size, self.offsets_path)
        offset_bytes, size_bytes, zero, checksum = _ENTRY.unpack(entry)
        if zero or size_bytes > DOCUMENT_BYTES_MAX or offset_bytes + size_bytes > self._size_bytes:
            raise self._damaged(self.offsets_path, row * _ENTRY.size, row)
        content = read_exactly(self._documents, size_bytes, offset_bytes, self.path)
        if _checksum(self._build_id, row, offset_bytes, content) != checksum:
            raise self._damaged(self.path, offset_bytes, row)
        try:
            return _decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._damaged(self.path, offset_bytes, row) from None

    def _damaged(self, path: str, offset_bytes: int, row: int) -> CorruptionError:
        what = f"the document of row {row} is damaged at byte {offset_bytes}, or of another build"
        return damage(path, f"is wrong: {what}", offset_bytes)

    def close(self) -> None:
        """Closes the files; a second call does nothing."""
        for descriptor in (self._documents, self._offsets):
            if descriptor >= 0:
                os.close(descriptor)
        self._documents = self._offsets = -1

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the store."""
        self.close()


def _checksum(build_id: int, row: int, offset_bytes: int, content: bytes) -> int:
    seed = xxhash.xxh3_64_intdigest(_SEED.pack(build_id, row, offset_bytes, len(content), 0))
    return xxhash.xxh3_64_intdigest(content, seed)
