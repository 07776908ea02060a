"""The name of the codes, and how many bytes those of a cluster have. Pure."""

from __future__ import annotations

import msgspec

CODEC = "int4"
"""The codes that a build writes and a searcher scans: 4 bits a number, and a float32 a row."""


class CodeLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How the codes of a cluster are arranged: blocks of `block_rows` codes in `block_bytes`.

    The last block of a cluster may have fewer codes; its size is the same.
    """

    codec: str
    block_rows: int
    block_bytes: int

    def size_bytes(self, row_count: int) -> int:
        """Returns the bytes of the codes of a cluster of `row_count` rows."""
        return -(-row_count // self.block_rows) * self.block_bytes
