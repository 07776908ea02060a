"""The codecs, and how many bytes the codes of a cluster have. Pure."""

from __future__ import annotations

import msgspec

CODECS = ("flat", "sq8", "rabitq4", "rabitq3", "rabitq2", "rabitq1")
"""From the most accurate codes to the smallest.

`flat`: the vectors as they are stored. `sq8`: 8 bits for each number of the rotated vector.
`rabitq1` to `rabitq4`: RaBitQ. None needs training: at most a random rotation.
"""
RABITQ_BITS = {"rabitq1": 1, "rabitq2": 2, "rabitq3": 3, "rabitq4": 4}
"""Bits for each number of a vector, by codec."""
SQ8_REACH = 6.0
"""The largest number that a code of `sq8` can stand for, times sqrt(dimension).

The numbers of a normalised vector, rotated at random, are about normally distributed with deviation
1 / sqrt(dimension): one in 500 million is larger, and it is clipped.
"""


class CodeLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How the codes of a cluster are arranged: blocks of `block_rows` codes in `block_bytes`.

    `codec`: a name of `CODECS`. The last block of a cluster may have fewer codes; its size is the
    same.
    """

    codec: str
    block_rows: int
    block_bytes: int

    def size_bytes(self, row_count: int) -> int:
        """Returns the bytes of the codes of a cluster of `row_count` rows."""
        return -(-row_count // self.block_rows) * self.block_bytes


def parse_codecs(text: str) -> tuple[str, ...]:
    """Returns the codecs that `text` lists, separated by commas, in the order of `CODECS`.

    Raises `ValueError`, which lists the valid names.
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in CODECS]:
        raise ValueError(
            f"there are no codes {unknown[0]!r}: write one or more of {', '.join(CODECS)}, "
            "separated by commas"
        )
    return tuple(codec for codec in CODECS if codec in names)
