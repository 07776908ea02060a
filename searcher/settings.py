"""The section `[searcher]` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from carpool.settings import Settings
from schemas.query import TOP_K_MAX, SearchMode
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
            description="Bytes of codes, rows and clusters in memory, resident and being read. The "
            "searcher never exceeds it. An index of 1,000,000 x 384 has 223 MB of codes of 4 "
            "bits, and 126 MB of 2 bits. Too low: every query reads from disk; below the size of "
            "the largest cluster, the searcher refuses to start. Too high: the machine runs out of "
            "memory. The process needs about 100 MB more.",
        ),
    ] = 256 * MIB
    search_mode: Annotated[
        SearchMode,
        msgspec.Meta(
            description="What is promised of a query that names no search_mode, among the "
            "clusters that it probes. default: of 1,000 ids at least 998 are those of an exact "
            "search; codes in memory are scanned and a few rows are read. margin: at most one id "
            "in 10,000 is missed; more rows are read. exact: none is; whole clusters are read. An "
            "index without codes is always searched exactly."
        ),
    ] = "default"
    cache_policy: Annotated[
        PolicyName,
        msgspec.Meta(
            description="Which cluster is evicted first. farthest_next_use: the one that the "
            "queries waiting in Kafka need last, then a rarely used one. lfu, gdsf, tiny_lfu: a "
            "rarely used one. lru: the least recently used one. edgerag: the one with the lowest "
            "product of profiled read latency and access count. A bad choice costs reads and "
            "never changes results."
        ),
    ] = "farthest_next_use"
    read_ahead_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Bytes of clusters that queries in progress need, and that are being read "
            "or wait to be scored; 0: an eighth of the budget, at most 96 MiB. Too low: the disk "
            "idles while a cluster is scored. Too high: less memory for resident clusters.",
        ),
    ] = 0
    slice_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Largest part of a cluster, in bytes, that is read, kept and scored as "
            "one unit; 0: clusters are not cut. Too low: more bookkeeping per byte. Too high: the "
            "disk idles at the ends of windows, and less fits in memory.",
        ),
    ] = 8 * MIB
    prefetch: Annotated[
        Literal["none", "overlapped"],
        msgspec.Meta(
            description="Whether clusters that only later queries need are read ahead. "
            "overlapped: whenever there is no other read. none: never."
        ),
    ] = "overlapped"
    prefetch_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Bytes of clusters that were read ahead for later queries and are not "
            "used yet; 0: a 32nd of the budget. Too low (below one slice): nothing is read ahead, "
            "and the next window waits. Too high: clusters that are needed sooner are evicted.",
        ),
    ] = 0
    overtaken_max: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1_000_000,
            description="How many later queries may finish before a query because they need fewer "
            "bytes. Too low: the mean wait grows. Too high: a query with large clusters may wait "
            "for a long time.",
        ),
    ] = 100
    scoring_threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads that score clusters; 0: one for each core. Too low: cores idle. "
            "Too high: the threads compete for cores.",
        ),
    ] = 0
    engine: Annotated[
        Literal["auto", "io_uring", "threads"],
        msgspec.Meta(
            description="How reads are submitted to the kernel. auto: io_uring where the kernel "
            "allows it, else a pool of threads."
        ),
    ] = "auto"
    reads_in_flight_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=4096,
            description="Block reads in the kernel at a time, each of up to 1 MiB. Too low: the "
            "disk idles, most of all a virtual disk, which completes reads in batches. Too high: "
            "an urgent read waits behind others, and read_ahead_bytes must be larger.",
        ),
    ] = 32
    prefetch_reads_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=256,
            description="How many of these reads may be for later queries. Too low: reading ahead "
            "is slow. Too high: the reads of a new query wait behind them.",
        ),
    ] = 2
    read_attempts: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=10,
            description="Tries to read a cluster after an I/O error, before the cluster is "
            "skipped. Too low: a short-lived error loses hits. Too high: a failing disk delays "
            "every query.",
        ),
    ] = 2
    read_timeout_ms: Annotated[
        int,
        msgspec.Meta(
            ge=10,
            le=3_600_000,
            description="Milliseconds in the kernel after which a read is given up and its "
            "cluster is skipped. Too low: a slow disk loses hits. Too high: queries wait for a "
            "disk that hangs.",
        ),
    ] = 5_000
    direct_io: Annotated[
        Literal["require", "auto"],
        msgspec.Meta(
            description="O_DIRECT. require: refuse to start on a file system without it, or in "
            "memory (tmpfs), where the index would use memory outside the budget. auto: use "
            "buffered reads there, and log a warning."
        ),
    ] = "require"
    top_k_default: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=TOP_K_MAX,
            description="Passages for a query that does not name a number. Too low: answers lack "
            "context. Too high: prompts grow.",
        ),
    ] = 5
    queries_in_hand_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=65_536,
            description="Queries that are searched together. They share each cluster that is "
            "read. Too low: clusters are read again for the queries that had to wait. Too high: a "
            "restart repeats more work, and lag is hidden in memory.",
        ),
    ] = 256
    groups_in_hand_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=65_536,
            description="Groups that were taken from the topic and are not finished; see "
            "queries_in_hand_max.",
        ),
    ] = 256
    intake_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=GROUPS.max_message_bytes,
            description="Bytes of these groups; at least the largest record of the topic. Too "
            "high: memory outside the budget.",
        ),
    ] = 2 * GROUPS.max_message_bytes
