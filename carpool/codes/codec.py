"""The codecs, and how many bytes the codes of a cluster have. Pure."""

from __future__ import annotations

import msgspec

BITS_OF = {"rabitq1": 1, "rabitq2": 2, "rabitq3": 3, "rabitq4": 4}
"""Bits for each number of a vector, by codec. RaBitQ needs no training: only a random rotation."""


class CodeLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How the codes of a cluster are arranged: blocks of `block_rows` codes in `block_bytes`.

    `codec`: a name of `BITS_OF`. The last block of a cluster may have fewer codes; its size is the
    same.
    """

    codec: str
    block_rows: int
    block_bytes: int

    def size_bytes(self, row_count: int) -> int:
        """Returns the bytes of the codes of a cluster of `row_count` rows."""
        return -(-row_count // self.block_rows) * self.block_bytes
