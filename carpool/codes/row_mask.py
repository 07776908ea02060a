"""A mask of rows: a bit for each row number, 1 where scans may find the row.

Row r is bit r % 8 of byte r // 8, so the 16 rows of a block of codes have 16 bits that follow each
other, wherever their cluster begins.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carpool.arrays import Bool, Int64

RowMask = npt.NDArray[np.uint8]

READ_BYTES = 4
"""The kernel reads so many bytes at once, so a mask has them beyond its last row."""


def visible(mask: RowMask, first_row: int, count: int) -> Bool:
    """Returns which of `count` rows from `first_row` on may be found: (count,) bool."""
    some = mask[first_row // 8 : (first_row + count + 7) // 8]
    bits = np.unpackbits(some, bitorder="little")[first_row % 8 :][:count]
    return bits.astype(np.bool_)


def are_visible(mask: RowMask, rows: Int64) -> Bool:
    """Returns which of `rows` may be found: (n,) int64 -> (n,) bool."""
    shown: Bool = (mask[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(np.bool_)
    return shown


def set_visible(mask: RowMask, rows: Int64, *, is_visible: bool) -> None:
    """Shows or hides `rows`, (n,) int64, in place."""
    bits = np.left_shift(1, rows & 7).astype(np.uint8)
    if is_visible:
        np.bitwise_or.at(mask, rows >> 3, bits)
    else:
        np.bitwise_and.at(mask, rows >> 3, ~bits)


def new_mask(rows: int, *, is_visible: bool) -> RowMask:
    """Returns a mask of `rows` rows."""
    return np.full(rows // 8 + 1 + READ_BYTES, 255 if is_visible else 0, np.uint8)


def check_mask(mask: RowMask, end_row: int) -> None:
    """Raises `ValueError` where `mask` does not have all rows below `end_row`."""
    is_flat = mask.dtype == np.uint8 and mask.ndim == 1 and mask.flags.c_contiguous
    if not is_flat or len(mask) < end_row // 8 + READ_BYTES:
        raise ValueError(f"a mask of {len(mask)} bytes does not have the rows below {end_row}")
