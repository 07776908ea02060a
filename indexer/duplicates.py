"""Finds lines that repeat the id of an earlier line, from digests: 24 bytes a line."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16
"""Of BLAKE2b: the chance that any two of a billion ids have the same digest is 1e-21."""


class SeenIds:
    """The digest and the line number of each id. A set of the ids would take much more memory."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._lines = array("q")

    def add(self, doc_id: str, line: int) -> None:
        """Adds a line; lines come in ascending order."""
        self._digests += hashlib.blake2b(doc_id.encode(), digest_size=DIGEST_BYTES).digest()
        self._lines.append(line)

    def repeated(self) -> bytes:
        """Returns a byte for each line number: 1 where an earlier line has the same id.

        Ends after the last such line. Memory: 40 bytes a line more, while they are sorted.
        """
        digests = np.frombuffer(self._digests, "<u8").reshape(-1, 2)
        # Stable: equal digests stay in the order of their lines.
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        ordered = digests[order]
        is_repeated = (ordered[1:] == ordered[:-1]).all(axis=1)
        numbers: npt.NDArray[np.int64] = np.frombuffer(self._lines, np.int64)
        lines = numbers[order[1:][is_repeated]]
        found = np.zeros(int(lines.max(initial=-1)) + 1, dtype=np.uint8)
        found[lines] = 1
        return found.tobytes()
