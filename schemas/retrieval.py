"""The record of `rag.retrievals.v1`: what was found for one query; drafts (*later*) have the same
shape.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas.query import Query
from schemas.record import ClusterId, Headers, Identifier, NonNegative, Record, Source

Tier = Literal["gpu", "ram", "ssd"]
"""Where a cluster was when a query needed it: `ssd` means that it had to be read."""


class Hit(Record, frozen=True, kw_only=True):
    """One passage found. `score` is the inner product of normalised vectors; `token_ids` comes
    *later*.
    """

    doc_id: str
    score: float
    cluster: ClusterId
    title: str = ""
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    tokenizer: Identifier | None = None


class Probe(Record, frozen=True, kw_only=True):
    """One cluster that the query probed, and the tier where it was found."""

    cluster: ClusterId
    tier: Tier


class Confidence(Record, frozen=True, kw_only=True):
    """How sure a draft is, and by which method (*later*)."""

    method: str
    value: float


class Retrieval(Record, frozen=True, kw_only=True):
    """Final or draft result of one query, hits best first.

    `bytes_read`: read from disk because of this query. `batch_size`: queries of the group that it
    was searched with. `completed_us`: epoch microseconds when the search ended. `timings_us` holds
    what each stage so far took.
    """

    query: Query
    source: Source
    headers: Headers = ()
    deadline_us: NonNegative | None = None
    revision: Annotated[int, msgspec.Meta(ge=1)]
    is_final: bool
    index_version: Identifier
    embedding_model: Identifier
    hits: tuple[Hit, ...]
    skipped_clusters: tuple[ClusterId, ...]
    probes: tuple[Probe, ...] = ()
    bytes_read: NonNegative = 0
    timings_us: dict[str, int] = msgspec.field(default_factory=dict)
    batch_size: NonNegative = 0
    completed_us: NonNegative = 0
    clusters_done: NonNegative | None = None
    clusters_total: NonNegative | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    stable_prefix: NonNegative | None = None
    confidence: Confidence | None = None
