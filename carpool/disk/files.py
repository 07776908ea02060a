"""Reads and writes whole files: atomic writes, fsync of folders, checksums, exact reads."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from pathlib import Path

from carpool.errors import CorruptionError

CHUNK_BYTES = 1 << 20


def fsync_folder(folder: Path) -> None:
    """Makes renames and new files in `folder` durable. Blocks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes `path`: temporary file, fsync, rename, fsync of the folder.

    After a crash the file has its old content or its new content.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_folder(path.parent)


def file_crc32(path: Path) -> int:
    """Returns the CRC-32 of a whole file, read in chunks. Blocks.

    Raises `CorruptionError` for a file with a hole, or that is no regular file.
    """
    crc32 = 0
    with os.fdopen(open_regular(path), "rb") as file:
        check_no_hole(file.fileno(), path)
        while chunk := file.read(CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def damage(path: Path | str, what: str, offset_bytes: int | None = None) -> CorruptionError:
    """Returns the error for a damaged file; `what` is the predicate of the message."""
    return CorruptionError(
        f"{path} {what}; restore the index or rebuild it", path=str(path), offset_bytes=offset_bytes
    )


def open_regular(path: Path | str) -> int:
    """Returns a descriptor of the regular file at `path`, for reading. The caller closes it.

    Does not wait for a writer, as opening a FIFO would. Raises `CorruptionError` for another kind
    of file, `OSError` where it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damage(path, "is no regular file")
    return descriptor


def check_no_hole(descriptor: int, path: Path) -> None:
    """Raises `CorruptionError` where a part of the file is not stored: it may exceed the disk.

    Does nothing where the file system cannot tell. Moves to the beginning of the file.
    """
    size_bytes = os.fstat(descriptor).st_size
    hole_bytes = os.lseek(descriptor, 0, os.SEEK_HOLE) if size_bytes else 0
    os.lseek(descriptor, 0, os.SEEK_SET)
    if hole_bytes < size_bytes:
        raise damage(path, "has a hole, which no build leaves", hole_bytes)


def read_exactly(descriptor: int, size_bytes: int, offset_bytes: int, path: str) -> bytes:
    """Returns the bytes at an offset (pread, any thread). Raises `CorruptionError` if too few."""
    parts: list[bytes] = []
    done_bytes = 0
    try:
        # One call reads 2 GiB at most.
        while done_bytes < size_bytes and (
            part := os.pread(descriptor, size_bytes - done_bytes, offset_bytes + done_bytes)
        ):
            parts.append(part)
            done_bytes += len(part)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        end_bytes = offset_bytes + done_bytes
        what = f"cannot be read from the disk at byte {end_bytes} ({error.strerror})"
        raise damage(path, what, end_bytes) from error
    if done_bytes != size_bytes:
        end_bytes = offset_bytes + done_bytes
        what = f"ends at byte {end_bytes}, {size_bytes - done_bytes} bytes early"
        raise damage(path, what, end_bytes)
    return b"".join(parts)


def check_size(path: Path, size_bytes: int) -> None:
    """Raises `CorruptionError` unless the file exists and has this size."""
    if not path.exists():
        raise damage(path, "is missing")
    if not path.is_file():
        raise damage(path, "is no regular file")
    if (found_bytes := path.stat().st_size) != size_bytes:
        what = f"has {found_bytes} bytes, not {size_bytes}"
        raise damage(path, what, min(found_bytes, size_bytes))


def read_checked(path: Path, *, size_bytes: int, crc32: int) -> bytes:
    """Returns a small file after checking size and checksum. Raises `CorruptionError`.

    A file with a hole is refused before it is read: it can be larger than the disk.
    """
    try:
        check_size(path, size_bytes)
        with os.fdopen(open_regular(path), "rb") as file:
            check_no_hole(file.fileno(), path)
            content = file.read(size_bytes + 1)
    except OSError as error:
        raise damage(path, f"cannot be read ({error.strerror})") from error
    if zlib.crc32(content) != crc32:
        raise damage(path, "is damaged: its checksum is not the manifest's", 0)
    return content
