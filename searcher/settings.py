"""The section `[searcher]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from carpool.settings import Settings
from schemas.query import TOP_K_MAX
from schemas.topics import GROUPS

MIB = 1 << 20


class SearcherSettings(Settings, frozen=True, kw_only=True):
    """What the searcher may use, and how it reads."""

    budget_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            description="Bytes of cluster data in memory: resident and being read, held exactly. Too low: every query reads from "
            "disk, and below the largest cluster the searcher refuses to start. Too high: the machine runs out of memory. The "
            "process needs about 100 MB beside it.",
        ),
    ] = 256 * MIB
    cache_policy: Annotated[
        Literal["edgerag", "lru"],
        msgspec.Meta(
            description="What is evicted first. edgerag: least profiled read latency x access count; good where favourites last. "
            "lru: least recently used; good where favourites change."
        ),
    ] = "edgerag"
    reader_threads: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=256,
            description="Reads in flight for the query being searched. Too low: the disk idles. Too high: threads contend.",
        ),
    ] = 4
    prefetch: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the clusters of the next group's first query are read while this group is searched."
        ),
    ] = True
    prefetch_reads_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=256,
            description="Reads in flight for the next group, on threads of their own. Too low: the next group still "
            "waits for its clusters. Too high: a read for the current query shares the disk with more of them.",
        ),
    ] = 2
    read_attempts: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=10,
            description="Tries of a cluster's read that ends in an I/O error, before the cluster is skipped. Too low: a passing "
            "error costs hits. Too high: a dying disk holds up every query.",
        ),
    ] = 2
    direct_io: Annotated[
        Literal["require", "auto"],
        msgspec.Meta(
            description="O_DIRECT. require: refuse to start on a file system without it, since the page cache would hold the "
            "index a second time, outside the budget. auto: fall back to buffered reads there, and say so in the log."
        ),
    ] = "require"
    top_k_default: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=TOP_K_MAX,
            description="Passages for a query that does not say how many. Too low: answers lack context. Too high: "
            "prompts grow.",
        ),
    ] = 5
    queries_in_hand_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=65_536,
            description="Queries searched together: all that wait, up to this many, share each cluster that is read. Too "
            "low: clusters are read again for those that had to wait. Too high: a restart repeats more, and lag hides in memory.",
        ),
    ] = 256
    groups_in_hand_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=65_536,
            description="Groups taken from the topic and not finished; see queries_in_hand_max.",
        ),
    ] = 256
    intake_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=GROUPS.max_message_bytes,
            description="Bytes of the groups in hand; at least the largest record of the topic. Too high: memory beside the "
            "budget.",
        ),
    ] = 2 * GROUPS.max_message_bytes
