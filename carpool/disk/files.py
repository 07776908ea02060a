"""Files that are whole or not there: atomic writes, fsync of folders, checksums, exact reads."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

from carpool.errors import CorruptionError

CHUNK_BYTES = 1 << 20


def fsync_folder(folder: Path) -> None:
    """Makes renames and new names in `folder` survive a power cut. Blocks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes `path`: temporary file, fsync, rename, fsync of the folder.

    After a crash there is the old file or the new one.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_folder(path.parent)


def file_crc32(path: Path) -> int:
    """Returns the CRC-32 of a whole file, read in chunks. Blocks."""
    crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def read_exactly(descriptor: int, size_bytes: int, offset_bytes: int, path: str) -> bytes:
    """Returns the bytes at an offset (pread, any thread). Raises `CorruptionError` if too few."""
    parts: list[bytes] = []
    done_bytes = 0
    try:
        # One call ends at 2 GiB at the latest.
        while done_bytes < size_bytes and (
            part := os.pread(descriptor, size_bytes - done_bytes, offset_bytes + done_bytes)
        ):
            parts.append(part)
            done_bytes += len(part)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptionError(
            f"{path}: the disk cannot read byte {offset_bytes + done_bytes} ({error.strerror}); "
            "restore the index or build it again",
            path=path,
            offset_bytes=offset_bytes + done_bytes,
        ) from error
    if done_bytes != size_bytes:
        raise CorruptionError(
            f"{path} ends at byte {offset_bytes + done_bytes}, {size_bytes - done_bytes} bytes "
            "early; restore the index or build it again",
            path=path,
            offset_bytes=offset_bytes + done_bytes,
        )
    return b"".join(parts)


def read_checked(path: Path, *, size_bytes: int, crc32: int) -> bytes:
    """Returns a small file after checking size and checksum. Raises `CorruptionError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorruptionError(
            f"{path} cannot be read ({error.strerror}); restore the index or build it again",
            path=str(path),
        ) from error
    if len(content) != size_bytes:
        raise CorruptionError(
            f"{path} has {len(content)} bytes, not {size_bytes}; restore the index or build it "
            "again",
            path=str(path),
            offset_bytes=min(len(content), size_bytes),
        )
    if zlib.crc32(content) != crc32:
        raise CorruptionError(
            f"{path} is damaged: its checksum is not the manifest's; restore the index or build it "
            "again",
            path=str(path),
            offset_bytes=0,
        )
    return content
