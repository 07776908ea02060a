"""A data file in pages of 4 KiB, and its side file with a checksum for each page.

`NAME.sum` has 4 bytes a page: the low 32 bits of XXH3-64 over the page. The seed depends on the
build, on the name of the file and on the number of the page, so a page is correct only at its place
in its file of its build. The last page is filled with zeros. The data of the file need no room for
checksums, so rows and documents are stored without gaps.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import xxhash

from carpool.arrays import UInt8, UInt32
from carpool.disk.files import (
    check_size,
    damage,
    fsync_folder,
    open_regular,
    read_checked,
    read_exactly,
)
from carpool.disk.manifest import FileEntry
from carpool.errors import CorruptionError

PAGE_BYTES = 4096
SUM_BYTES = 4
SUM_SUFFIX = ".sum"
FEW_PAGES = 16
"""Checksums of more pages are compared by NumPy, which is faster then."""


_MASK = (1 << 32) - 1
_SEED_MASK = (1 << 64) - 1


def page_sums(pages: UInt8, first_page: int, seed: int) -> UInt32:
    """Returns the checksum of each page: (n, 4096) uint8 -> (n,) uint32.

    `first_page`: number of the first page in its file. About 12 GB/s.
    """
    first = seed + first_page  # above 64 bits it wraps
    seeds = range(first, first + len(pages))
    digests = map(xxhash.xxh3_64_intdigest, pages, seeds)
    return np.fromiter(digests, np.uint64, len(pages)).astype(np.uint32)


def file_seed(build_id: int, name: str) -> int:
    """Returns the seed of page 0 of the file `name`; that of page p is this plus p."""
    return xxhash.xxh3_64_intdigest(build_id.to_bytes(8, "little") + name.encode())


class CheckedFile:
    """A data file whose pages are verified.

    Keeps the checksums in memory: a thousandth of the file.
    """

    def __init__(self, path: Path, sums: UInt32, seed: int) -> None:
        self.path = path
        self.page_count = len(sums)
        self._sums = sums
        self._seed = seed

    @classmethod
    def open(cls, path: Path, build_id: int, files: dict[str, FileEntry]) -> CheckedFile:
        """Returns the file at `path`. Reads and verifies its side file; `files` is the manifest's.

        Raises `CorruptionError` where a file is missing, damaged or has another size.
        """
        entry, side = files[path.name], files[_side(path).name]
        check_size(path, entry.size_bytes)
        content = read_checked(_side(path), size_bytes=side.size_bytes, crc32=side.crc32)
        if side.size_bytes * PAGE_BYTES != entry.size_bytes * SUM_BYTES:
            raise damage(path, f"has {entry.size_bytes} bytes, which its checksums do not cover")
        sums = np.frombuffer(content, "<u4")
        return cls(path, sums, file_seed(build_id, path.name))

    def first_damaged(self, content: memoryview, first_page: int) -> int | None:
        """Returns the number of the first wrong page; None if all are correct.

        `content`: whole pages; `first_page`: the number of the first of them.
        """
        if len(content) <= FEW_PAGES * PAGE_BYTES:
            for at in range(0, len(content), PAGE_BYTES):
                page, seed = content[at : at + PAGE_BYTES], self._seed + first_page & _SEED_MASK
                if xxhash.xxh3_64_intdigest(page, seed) & _MASK != self._sums.item(first_page):
                    return first_page
                first_page += 1
            return None
        pages = np.frombuffer(content, np.uint8).reshape(-1, PAGE_BYTES)
        stored = self._sums[first_page : first_page + len(pages)]
        wrong = np.flatnonzero(stored != page_sums(pages, first_page, self._seed))
        return first_page + int(wrong[0]) if len(wrong) else None

    def damaged(self, page: int) -> CorruptionError:
        """Returns the error for a wrong page."""
        what = f"is wrong: page {page} is damaged or of another build"
        return damage(self.path, what, page * PAGE_BYTES)

    def read(self, start_bytes: int, size_bytes: int) -> UInt8:
        """Returns verified bytes, read through the page cache: for tools. Blocks.

        Raises `CorruptionError`.
        """
        first = start_bytes // PAGE_BYTES
        end = -(-(start_bytes + size_bytes) // PAGE_BYTES)
        descriptor = open_regular(self.path)
        try:
            content = read_exactly(
                descriptor, (end - first) * PAGE_BYTES, first * PAGE_BYTES, str(self.path)
            )
        finally:
            os.close(descriptor)
        if (page := self.first_damaged(memoryview(content), first)) is not None:
            raise self.damaged(page)
        return np.frombuffer(content, np.uint8, size_bytes, start_bytes - first * PAGE_BYTES)


class CheckedFileWriter:
    """Writes a data file and its side file, front to back. Memory: a page. One thread.

    The files get their names in `close`, the data file last: where it exists, both are complete.
    """

    def __init__(self, folder: Path, name: str, build_id: int) -> None:
        self._path = folder / name
        self._seed = file_seed(build_id, name)
        self._file = _temporary(self._path).open("wb")
        self._side = _temporary(_side(self._path)).open("wb")
        self._crc32 = 0
        self._side_crc32 = 0
        self._page_count = 0
        self._rest = b""
        self.size_bytes = 0

    def append(self, content: bytes | memoryview) -> None:
        """Adds bytes."""
        self.size_bytes += len(content)
        whole = (len(self._rest) + len(content)) // PAGE_BYTES * PAGE_BYTES
        if not whole:
            self._rest += bytes(content)
            return
        taken = whole - len(self._rest)
        self._write(self._rest + bytes(content[:taken]))
        self._rest = bytes(content[taken:])

    def close(self) -> dict[str, FileEntry]:
        """Fills the last page, makes both files durable, and returns their entries. Blocks."""
        if self._rest:
            self._write(self._rest.ljust(PAGE_BYTES, b"\0"))
            self._rest = b""
        entries = {}
        for path, file, size_bytes, crc32 in (
            (_side(self._path), self._side, self._page_count * SUM_BYTES, self._side_crc32),
            (self._path, self._file, self._page_count * PAGE_BYTES, self._crc32),
        ):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            _temporary(path).replace(path)
            fsync_folder(path.parent)
            entries[path.name] = FileEntry(size_bytes=size_bytes, crc32=crc32)
        return entries

    def abandon(self) -> None:
        """Closes both files of an interrupted build."""
        for file in (self._file, self._side):
            file.close()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._crc32 = zlib.crc32(content, self._crc32)
        pages: UInt8 = np.frombuffer(content, np.uint8).reshape(-1, PAGE_BYTES)
        sums = page_sums(pages, self._page_count, self._seed).astype("<u4").tobytes()
        self._side.write(sums)
        self._side_crc32 = zlib.crc32(sums, self._side_crc32)
        self._page_count += len(content) // PAGE_BYTES


def side_name(name: str) -> str:
    """Returns the name of the side file of `name`."""
    return name + SUM_SUFFIX


def _side(path: Path) -> Path:
    return path.with_name(side_name(path.name))


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")
