"""What a search sees: the visible rows of the base, fresh rows, and how far both go."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.codes.row_mask import RowMask
from schemas.document import Corpus
from searcher.fresh.rows import FreshView


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Immutable. A search keeps it until its record is made.

    `mask`: the visible rows of the base; None: all are. `fresh`: None where there are none.
    `corpus`: what records say of it.
    """

    corpus: Corpus
    mask: RowMask | None = None
    fresh: FreshView | None = None
