"""The section `grouper` of the settings: windows, grouping, and how much may be in hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from carpool.settings import Settings
from grouper.plan.grouping import LinkageName, PolicyName
from grouper.plan.order import OrderName
from grouper.plan.tenants import parse_weights
from schemas.query import NPROBE_MAX, QUERY_BYTES_MAX
from schemas.topics import GROUPS

MIB = 1024 * 1024
GROUP_HEADERS_BYTES = 64 * 1024
"""Left free in the topic's limit for key, headers and framing of a group."""


class GrouperSettings(Settings, frozen=True, kw_only=True):
    """Which queries are planned together, by which policy, and the bounds on what is held."""

    RENAMED_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "policy": {"whole": "per_window", "none": "per_query"},
        "order": {"overlap": "nearest_chain"},
    }
    REMOVED: ClassVar[Mapping[str, str]] = {"lanes": "there is one lane"}

    window_queries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Queries a window at most (CaGR-RAG: 100). Low: few to share with; high: "
            "long batches.",
        ),
    ] = 100
    window_queries_min: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Queries that a window waits for while more are known to be on their way "
            "(CaGR-RAG: 20). Low: small windows; high: slow brokers delay the first. Never waited "
            "for when nothing more is waiting.",
        ),
    ] = 20
    window_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="How long a window waits for queries that are on their way, ms; four times "
            "that below window_queries_min. Low: smaller windows under backlog; high: latency. An "
            "idle system never waits.",
        ),
    ] = 50
    horizon_windows: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Full windows that are read, embedded and probed ahead of the one that "
            "leaves, for the horizon of its record; 0: none. Never waited for. Low: the searcher "
            "sees less of what comes; high: memory, larger records. Needs horizon_windows + 3 "
            "windows in intake_queries_max, else it is shorter.",
        ),
    ] = 4
    interactive_weight: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Windows of rag.queries.v1 that are closed for one of "
            "rag.queries.batch.v1, while both have queries. "
            "Low: batch work delays others; high: under a lasting load it takes long.",
        ),
    ] = 16
    tenant_weights: Annotated[
        str,
        Meta(
            description="Turns of tenants (header rag-tenant) in a window that cannot take all "
            "that is gathered: TENANT=WEIGHT, "
            "comma-separated; 1 for all others, and for those without a name together.",
        ),
    ] = ""
    policy: Annotated[
        PolicyName,
        Meta(
            description="Which queries share a group: per_window (all of a window); greedy (those "
            "similar to one member, CaGR-RAG's Algorithm 1); agglomerative (those similar to all "
            "members, its Eq. 3; loads scikit-learn); per_query (none). The searcher shares reads "
            "between groups too, so smaller groups cost records and save no reads."
        ),
    ] = "per_window"
    linkage: Annotated[
        LinkageName,
        Meta(
            description="What agglomerative wants alike: complete (every pair, Eq. 3), average "
            "(the mean of all pairs), single "
            "(one pair). From the first to the last, groups grow and share less."
        ),
    ] = "complete"
    order: Annotated[
        OrderName,
        Meta(
            description="The order of groups, and of queries in a group: arrival, or nearest_chain "
            "(next is the query most similar to those just before). The searcher makes an order of "
            "its own by cluster, so nearest_chain costs time and saves no reads there. No query "
            "overtakes one that has a deadline."
        ),
    ] = "arrival"
    jaccard_similarity_min: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of clusters that puts two queries into a group, 0 to 1 (the paper's "
            "theta, 0.5; equal joins). "
            "Low: large groups that share little; high: every query travels alone.",
        ),
    ] = 0.5
    nprobe: Annotated[
        int,
        Meta(
            ge=0,
            le=NPROBE_MAX,
            description="Clusters a query probes unless it says so itself; 0: what the index was "
            "measured for. Low: fast, misses "
            "passages; high: reads more of the disk for each query.",
        ),
    ] = 0
    group_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            description="Encoded size at which a group is cut into several records, bytes; a "
            "larger query travels alone. Low: groups are torn apart; high: large records. Must "
            "stay below what the topic of groups takes.",
        ),
    ] = 4 * MIB
    intake_queries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Queries held at once: gathered, read ahead, and being planned. Low: a "
            "short horizon and small windows; high: memory, and more to do again after a crash.",
        ),
    ] = 800
    intake_bytes_max: Annotated[
        int,
        Meta(
            ge=QUERY_BYTES_MAX,
            description="Bytes of the queries held at once. Low: large queries make small windows; "
            "high: memory.",
        ),
    ] = 32 * MIB

    def check(self) -> list[str]:
        """Returns what is wrong between these values."""
        problems = []
        if self.window_queries_min > self.window_queries_max:
            problems.append(
                f"window_queries_min {self.window_queries_min} is more than window_queries_max "
                f"{self.window_queries_max}: lower the first"
            )
        if self.intake_queries_max < 2 * self.window_queries_max:
            problems.append(
                f"intake_queries_max {self.intake_queries_max} holds less than two windows of "
                f"{self.window_queries_max}: one is "
                f"gathered while the other is planned; set at least {2 * self.window_queries_max}"
            )
        if self.group_bytes_max > GROUPS.max_message_bytes - GROUP_HEADERS_BYTES:
            problems.append(
                f"group_bytes_max {self.group_bytes_max} leaves no room for headers below the "
                f"{GROUPS.max_message_bytes} bytes that {GROUPS.name} takes; set at most "
                f"{GROUPS.max_message_bytes - GROUP_HEADERS_BYTES}"
            )
        try:
            parse_weights(self.tenant_weights)
        except ValueError as error:
            problems.append(f"tenant_weights: {error}")
        return problems
