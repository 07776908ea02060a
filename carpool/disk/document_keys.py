"""Which passages each document has: a table in the order of the digests of their keys.

`documents.keys` has 24 bytes a document: digest (16), number of its first passage, count of its
passages. A digest is compared as bytes, so as a big-endian number.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.arrays import UInt32
from carpool.digest import DIGEST_BYTES
from carpool.disk.files import check_size, damage, file_crc32, fsync_folder, open_regular
from carpool.disk.manifest import Manifest
from carpool.errors import ConfigError

DOCUMENT_KEYS_NAME = "documents.keys"
ENTRY = np.dtype([("high", ">u8"), ("low", ">u8"), ("first", "<u4"), ("count", "<u4")])
"""NumPy's texts of bytes lose zeros at their end, so a digest is two numbers."""
CHUNK_ENTRIES = 1 << 16

Entries = npt.NDArray[np.void]
"""(n,) `ENTRY`."""


def entries_of(digests: bytes | bytearray, counts: UInt32) -> Entries:
    """Returns the entries of documents that follow each other, in the order of the table.

    `digests`: 16 bytes a document; `counts`: (n,) uint32, its passages.
    """
    entries = np.empty(len(counts), ENTRY)
    halves = np.frombuffer(digests, ">u8").reshape(-1, 2)
    entries["high"], entries["low"] = halves[:, 0], halves[:, 1]
    entries["count"] = counts
    entries["first"] = np.cumsum(counts, dtype=np.int64) - counts
    return in_order(entries)


def in_order(entries: Entries) -> Entries:
    """Returns entries in the order of the table."""
    ordered: Entries = entries[np.lexsort((entries["low"], entries["high"]))]
    return ordered


def write_document_keys(folder: Path, parts: Iterable[Entries]) -> None:
    """Writes the table from `parts`, which follow each other in its order. Atomic, durable.

    Raises `ValueError` where they do not, or two have one digest.
    """
    path, last = folder / DOCUMENT_KEYS_NAME, np.empty(0, ENTRY)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        for part in parts:
            if not _rise(np.concatenate([last, part])):
                raise ValueError(f"the documents of {path} are not in order, or one is there twice")
            assert part.dtype == ENTRY
            file.write(part.tobytes())
            last = part[-1:] if len(part) else last
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_folder(folder)


def merged(kept: Iterable[Entries], added: Entries) -> Iterator[Entries]:
    """Yields the entries of both in the order of the table. `kept`: parts that are in order."""
    content, at = added.tobytes(), 0
    for part in kept:
        if len(part):
            last = _digest(part[-1:].tobytes(), 0)
            stop = bisect_left(range(len(added)), last, key=partial(_digest, content))
            both = np.concatenate([part, added[at:stop]], dtype=ENTRY)  # else in native order
            yield in_order(both)
            at = stop
    yield added[at:]


def _digest(content: mmap.mmap | bytes, at: int) -> bytes:
    return content[at * ENTRY.itemsize : at * ENTRY.itemsize + DIGEST_BYTES]


def _rise(entries: Entries) -> bool:
    high, low = entries["high"], entries["low"]
    is_more = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(is_more.all())


class DocumentKeys:
    """The documents of an index, mapped. Thread-safe. Implements `BaseDocuments` of the fold."""

    def __init__(self, path: Path, content: mmap.mmap | bytes, row_count: int) -> None:
        """`content`: of the file at `path`; `row_count`: the passages of the index."""
        self._path = path
        self._content = content
        self._row_count = row_count
        self._count = len(content) // ENTRY.itemsize

    @classmethod
    def open(cls, index_dir: Path, manifest: Manifest) -> DocumentKeys:
        """Returns the table of an index. Reads it once to check it; blocks.

        Raises `ConfigError` where the index was built without it, `CorruptionError` where it is
        damaged.
        """
        path, entry = index_dir / DOCUMENT_KEYS_NAME, manifest.files.get(DOCUMENT_KEYS_NAME)
        if entry is None:
            raise ConfigError(
                f"the index at {index_dir} has no table of documents, which changes of single "
                f"documents need; make it: carpool index codes {index_dir}"
            )
        check_size(path, entry.size_bytes)
        if file_crc32(path) != entry.crc32 or entry.size_bytes % ENTRY.itemsize:
            raise damage(path, "is damaged: its checksum is not the manifest's", 0)
        descriptor = open_regular(path)
        try:
            size_bytes = entry.size_bytes
            content = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ) if size_bytes else b""
        finally:
            os.close(descriptor)
        return cls(path, content, manifest.row_count)

    def __len__(self) -> int:
        """The number of documents."""
        return self._count

    def passages_of(self, key: bytes) -> range:
        """Returns the numbers of the passages of a document; see `BaseDocuments`. O(log n)."""
        at = bisect_left(range(self._count), key, key=partial(_digest, self._content))
        if at == self._count or _digest(self._content, at) != key:
            return range(0)
        start = at * ENTRY.itemsize
        entry = np.frombuffer(self._content[start : start + ENTRY.itemsize], ENTRY)[0]
        return range(int(entry["first"]), int(entry["first"]) + int(entry["count"]))

    def chunks(self) -> Iterator[Entries]:
        """Yields all entries in their order, some at a time: copies."""
        step = CHUNK_ENTRIES * ENTRY.itemsize
        for start in range(0, len(self._content), step):
            yield np.frombuffer(self._content[start : start + step], ENTRY)

    def check(self) -> None:
        """Raises `CorruptionError` unless documents are in order, and each passage is of one."""
        last, parts = np.empty(0, ENTRY), [np.empty((0, 2), np.int64)]
        for part in self.chunks():
            if not _rise(np.concatenate([last, part])):
                raise damage(self._path, "is wrong: its documents are not in order")
            parts.append(np.stack([part["first"], part["count"]], axis=1).astype(np.int64))
            last = part[-1:]
        passages = np.concatenate(parts)
        firsts, counts = passages[np.argsort(passages[:, 0], kind="stable")].T
        ends = np.cumsum(counts)
        if (firsts != ends - counts).any() or int(counts.sum()) != self._row_count:
            raise damage(self._path, "is wrong: not every passage is of exactly one document")
