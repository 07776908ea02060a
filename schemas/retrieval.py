"""The record of `rag.retrievals.v1`: the result of one query. Drafts have its shape."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas.document import Corpus
from schemas.hit import Hit as Hit
from schemas.query import Query, SearchMode
from schemas.record import ClusterId, Headers, Identifier, NonNegative, Record, Source, Times

Tier = Literal["gpu", "ram", "ssd"]
"""Where a cluster was when a query needed it; one in `ssd` was read."""


class Probe(Record, frozen=True, kw_only=True):
    """A cluster that the query probed, and the tier where it was."""

    cluster: ClusterId
    tier: Tier


class Searched(Record, frozen=True, kw_only=True):
    """How a query was searched.

    It probed `nprobe` clusters, and `rows_read` rows were read one by one, 0 in an exact search.
    `expected_recall` is the share of its ids that are expected to be those of an exact search of
    the same clusters. `recall_target` is what the query asked for. `is_calibrated` says whether
    nprobe was measured with questions; False: it is of a formula; None: the query named it.
    """

    mode: SearchMode
    nprobe: NonNegative
    rows_read: NonNegative
    expected_recall: Annotated[float, msgspec.Meta(ge=0, le=1)]
    recall_target: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    is_calibrated: bool | None = None


class Retrieval(Record, frozen=True, kw_only=True):
    """Final or draft result of one query, hits best first.

    `bytes_read`: read from disk for this query. `batch_size`: queries of its group. `completed_us`:
    epoch microseconds at the end of the search. `timings_us`: time by stage.

    A draft (`is_final` is false, on `rag.retrievals.draft.v1`) has the best passages of the first
    `clusters_done` of `clusters_total` clusters, perhaps fewer than `top_k`, with their texts;
    `completed_us` is when it was made. Drafts of a query have growing revisions. The final
    retrieval supersedes them all. `other_hits`: those of the other searches of a round. `corpus`:
    what was searched; None: the index alone.
    """

    query: Query
    source: Source
    headers: Headers = ()
    deadline_us: NonNegative | None = None
    revision: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    is_final: bool
    index_version: Identifier
    corpus: Corpus | None = None
    embedding_model: Identifier
    hits: tuple[Hit, ...]
    other_hits: tuple[tuple[Hit, ...], ...] = ()
    skipped_clusters: tuple[ClusterId, ...]
    probes: tuple[Probe, ...] = ()
    search: Searched | None = None
    bytes_read: NonNegative = 0
    timings_us: Times = msgspec.field(default_factory=dict)
    batch_size: NonNegative = 0
    completed_us: NonNegative = 0
    clusters_done: NonNegative | None = None
    clusters_total: NonNegative | None = None
