"""The section `[searcher]` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from carpool.settings import Settings
from schemas.query import TOP_K_MAX
from schemas.topics import GROUPS
from searcher.plan.eviction.policies import PolicyName

MIB = 1 << 20


class SearcherSettings(Settings, frozen=True, kw_only=True):
    """What the searcher may use, and how it reads."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "execution": "the searcher always reads each cluster once for all queries that it has; "
        "query_by_query is a baseline of carpool bench search"
    }
    RENAMED_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "prefetch": {"after_group": "overlapped"}
    }

    budget_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            description="Bytes of cluster data in memory: resident and being read, held exactly. "
            "Too low: every query reads from disk, and below the largest cluster the searcher "
            "refuses to start. Too high: the machine runs out of memory. The process needs about "
            "100 MB beside it.",
        ),
    ] = 256 * MIB
    cache_policy: Annotated[
        PolicyName,
        msgspec.Meta(
            description="What is evicted first. farthest_next_use: what the queries that wait in "
            "Kafka want last, then what is rarely wanted. lfu, gdsf, tiny_lfu: what is rarely "
            "wanted. lru: what was used longest ago. edgerag: the least profiled read latency x "
            "access count. The wrong one costs reads, never results."
        ),
    ] = "farthest_next_use"
    read_ahead_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Bytes of clusters for queries in hand that are being read or wait to be "
            "scored; 0: an eighth of the budget, at most 96 MiB. Too low: the disk idles while a "
            "cluster is scored. Too high: less is kept.",
        ),
    ] = 0
    slice_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Largest part of a cluster, in bytes, that is read, kept and "
            "scored as one; 0: clusters are not cut. Too low: more bookkeeping a byte. Too high: "
            "the disk idles at the ends of windows, and less is kept.",
        ),
    ] = 8 * MIB
    prefetch: Annotated[
        Literal["none", "overlapped"],
        msgspec.Meta(
            description="Whether clusters are read that only later queries want. overlapped: "
            "whenever nothing else is to be read. none: never."
        ),
    ] = "overlapped"
    prefetch_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Bytes read for later queries and not wanted yet; 0: a 32nd of the budget. "
            "Too low (below a slice): nothing is read ahead, and the next window waits. Too high: "
            "it pushes out what is wanted a little later.",
        ),
    ] = 0
    overtaken_max: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1_000_000,
            description="How many later queries may be done before a query, because they need "
            "fewer bytes. Too low: the mean "
            "wait grows. Too high: a query with large clusters may wait for long.",
        ),
    ] = 100
    scoring_threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads that score clusters; 0: as many as cores. Too low: cores idle. "
            "Too high: they compete.",
        ),
    ] = 0
    engine: Annotated[
        Literal["auto", "io_uring", "threads"],
        msgspec.Meta(
            description="How reads are handed to the kernel. auto: io_uring where the kernel "
            "allows it, else a pool of threads."
        ),
    ] = "auto"
    reads_in_flight_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=4096,
            description="Block reads with the kernel at a time, of up to 1 MiB each. Too low: the "
            "disk idles, most of all a virtual one, which tells of all that it was given at once. "
            "Too high: a read that matters now waits behind others, and more must be read ahead "
            "(read_ahead_bytes).",
        ),
    ] = 32
    prefetch_reads_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=256,
            description="Of those, reads for later queries, while nobody waits. Too low: "
            "prefetching is slow. Too high: a query that comes meanwhile waits behind them.",
        ),
    ] = 2
    read_attempts: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=10,
            description="Tries of a cluster's read that ends in an I/O error, before the cluster "
            "is skipped. Too low: a passing "
            "error costs hits. Too high: a dying disk holds up every query.",
        ),
    ] = 2
    read_timeout_ms: Annotated[
        int,
        msgspec.Meta(
            ge=10,
            le=3_600_000,
            description="After this long with the kernel a read is given up, and its cluster is "
            "skipped. Too low: a slow disk "
            "costs hits. Too high: queries wait for a disk that hangs.",
        ),
    ] = 5_000
    direct_io: Annotated[
        Literal["require", "auto"],
        msgspec.Meta(
            description="O_DIRECT. require: refuse to start on a file system without it, or in "
            "memory (tmpfs): the index would take memory a second time, outside the budget. auto: "
            "fall back to buffered reads there, and say so in the log."
        ),
    ] = "require"
    top_k_default: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=TOP_K_MAX,
            description="Passages for a query that does not say how many. Too low: answers lack "
            "context. Too high: prompts grow.",
        ),
    ] = 5
    queries_in_hand_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=65_536,
            description="Queries searched together: all that wait, up to this many, share each "
            "cluster that is read. Too low: clusters are read again for those that had to wait. "
            "Too high: a restart repeats more, and lag hides in memory.",
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
            description="Bytes of the groups in hand; at least the largest record of the topic. "
            "Too high: memory beside the budget.",
        ),
    ] = 2 * GROUPS.max_message_bytes
