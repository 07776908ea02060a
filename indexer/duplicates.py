"""Finds lines that repeat the id of an earlier line, from digests on disk, in bounded memory."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from carpool.errors import CorruptionError
from indexer.plan.passes import id_passes
from indexer.sequential import SequentialFile, bytes_of

DIGEST_BYTES = 16
"""Of BLAKE2b: the chance that any two of a billion ids have the same digest is 1e-21."""
CHUNK_ENTRIES = 1 << 17
_PENDING_BYTES = 1 << 20
_ENTRY = struct.Struct(f"<{DIGEST_BYTES}sQ")
_ENTRIES = np.dtype([("high", "<u8"), ("low", "<u8"), ("line", "<u8")])


class IdLog:
    """Writes the digest and the line number of each id to a file, 24 bytes a line. Not durable.

    A context manager.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_PENDING_BYTES)

    def add(self, doc_id: str, line: int) -> None:
        """Adds a line; lines come in ascending order."""
        digest = hashlib.blake2b(doc_id.encode(), digest_size=DIGEST_BYTES).digest()
        self._file.write(_ENTRY.pack(digest, line))

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Writes the pending lines and closes the file."""
        self._file.close()


def find_duplicates(path: Path, *, memory_bytes: int) -> bytes:
    """Returns a byte for each line number: 1 where an earlier line of the `IdLog` has the same id.

    Ends after the last such line. Each pass over the file sorts a share of the digests, so memory
    is `memory_bytes` and a byte a line. Blocks. Raises `CorruptionError` for a file that was cut.
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
    lines = np.concatenate(found).astype(np.int64)
    is_repeated = np.zeros(int(lines.max(initial=-1)) + 1, dtype=np.uint8)
    is_repeated[lines] = 1
    return is_repeated.tobytes()


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
    # Stable: equal digests stay in the order of their lines.
    order = np.lexsort((entries["low"], entries["high"]))
    high, low = entries["high"][order], entries["low"][order]
    is_repeated = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    lines: npt.NDArray[np.uint64] = entries["line"][order[1:][is_repeated]].astype(np.uint64)
    return lines
