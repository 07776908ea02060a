"""Finds lines that repeat the id of an earlier line, from digests on disk, in bounded memory."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.errors import CorruptionError
from indexer.plan.passes import id_passes
from indexer.sequential import SequentialFile, bytes_of

DIGEST_BYTES = 16
"""Of BLAKE2b: two different ids of a billion are taken for one with a chance of 1e-21."""
CHUNK_ENTRIES = 1 << 17
_PENDING_BYTES = 1 << 20
_ENTRY = struct.Struct(f"<{DIGEST_BYTES}sQ")
_ENTRIES = np.dtype([("high", "<u8"), ("low", "<u8"), ("line", "<u8")])


class DuplicateLines:
    """A set of line numbers, one bit for each line up to the last one: lines with a repeated id."""

    def __init__(self, lines: npt.NDArray[np.uint64] | None = None) -> None:
        """`lines`: (n,) uint64, numbered from 1, distinct, in any order; None: no line is one."""
        self.count = 0 if lines is None else len(lines)
        self._bits = bytearray()
        if lines is not None and len(lines):
            self._bits = bytearray(int(lines.max()) // 8 + 1)
            bits = np.left_shift(np.uint8(1), (lines % np.uint64(8)).astype(np.uint8))
            np.bitwise_or.at(
                np.frombuffer(self._bits, dtype=np.uint8),
                (lines // np.uint64(8)).astype(np.int64),
                bits,
            )

    def __contains__(self, line: object) -> bool:
        """Whether line `line` is one."""
        if not isinstance(line, int):
            return False
        place = line >> 3
        return place < len(self._bits) and bool(self._bits[place] >> (line & 7) & 1)


class IdLog:
    """Writes the digest and the line number of each id to a file, 24 bytes a line. Not durable."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_PENDING_BYTES)

    def add(self, doc_id: str, line: int) -> None:
        """Adds a line; lines come in ascending order."""
        digest = hashlib.blake2b(doc_id.encode(), digest_size=DIGEST_BYTES).digest()
        self._file.write(_ENTRY.pack(digest, line))

    def close(self) -> None:
        """Writes what is pending and closes the file; twice is harmless."""
        self._file.close()


def find_duplicates(path: Path, *, memory_bytes: int) -> DuplicateLines:
    """Returns the lines of an `IdLog` whose id a line before them has. Blocks.

    Memory: `memory_bytes`, and a bit a line: where all digests do not fit, each pass over the file
    sorts a share of them. Raises `CorruptionError` where the file ends in the middle of a line.
    """
    size_bytes = path.stat().st_size
    if size_bytes % _ENTRY.size:
        raise CorruptionError(
            f"{path} was cut short: it was changed during the build; run the same command again",
            path=str(path),
        )
    count = size_bytes // _ENTRY.size
    passes = id_passes(count, memory_bytes=memory_bytes)
    found = [_repeated(_share(path, count, number, passes)) for number in range(passes)]
    return DuplicateLines(np.concatenate(found))


def _share(path: Path, count: int, number: int, passes: int) -> npt.NDArray[np.void]:
    """The entries of pass `number`, in file order. Equal digests are in the same pass."""
    chunk = np.empty(min(CHUNK_ENTRIES, count), dtype=_ENTRIES)
    kept: list[npt.NDArray[np.void]] = [chunk[:0]]
    with SequentialFile(path) as file:
        for start in range(0, count, CHUNK_ENTRIES):
            entries = chunk[: min(CHUNK_ENTRIES, count - start)]
            if file.read_into(bytes_of(entries), start * _ENTRY.size) != entries.nbytes:
                raise CorruptionError(
                    f"{path} became shorter during the build; run the same command again",
                    path=str(path),
                )
            kept.append(entries[entries["high"] % np.uint64(passes) == number])
    return np.concatenate(kept)


def _repeated(entries: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """The lines of `entries` whose digest an earlier entry has."""
    order = np.lexsort(
        (entries["low"], entries["high"])
    )  # stable: equal digests stay in the order of their lines
    high, low = entries["high"][order], entries["low"][order]
    is_repeated = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    lines: npt.NDArray[np.uint64] = entries["line"][order[1:][is_repeated]].astype(np.uint64)
    return lines
