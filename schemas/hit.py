"""A passage that was found, as records carry it."""

from __future__ import annotations

from typing import Any

from schemas.record import ClusterId, Real, Record


class Hit(Record, frozen=True, kw_only=True):
    """One passage. `score`: inner product of normalised vectors.

    `metadata` is that of the line of the corpus, as far as the index stores it.
    """

    doc_id: str
    score: Real
    cluster: ClusterId
    title: str = ""
    text: str = ""
    metadata: dict[str, Any] | None = None
