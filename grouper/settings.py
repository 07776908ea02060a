"""The section `[grouper]` of the settings."""

from __future__ import annotations

from typing import Annotated

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
    """Which queries are planned together, by which policy, and the bounds of memory."""

    window_queries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Queries in a window at most (CaGR-RAG: 100). Too low: few queries share "
            "reads. Too high: long batches.",
        ),
    ] = 100
    window_queries_min: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Queries that a window waits for while records are pending (CaGR-RAG: "
            "20). Too low: small windows. Too high: slow brokers delay the first query. Without "
            "pending records a window never waits.",
        ),
    ] = 20
    window_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Milliseconds that a window waits for pending records; below "
            "window_queries_min, four times as long. Too low: smaller windows under a backlog. "
            "Too high: latency. An idle system never waits.",
        ),
    ] = 50
    horizon_windows: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Full windows that are read, embedded and probed before the current one "
            "leaves, to fill its horizon; 0: none. No window waits for them. Nothing is read ahead "
            "where [searcher] shard is none and, by budget_bytes, the codes of the index fit in "
            "memory. Too low: the searcher knows less of the next windows. Too high: memory, and "
            "larger records. Needs horizon_windows + 3 windows in intake_queries_max, else the "
            "horizon is shorter.",
        ),
    ] = 4
    interactive_weight: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Windows of rag.queries.v1 that are closed for each window of "
            "rag.queries.batch.v1 while both have queries. Too low: batch queries delay "
            "interactive ones. Too high: batch queries take long while interactive load lasts.",
        ),
    ] = 16
    tenant_weights: Annotated[
        str,
        Meta(
            description="Turns of tenants (header rag-tenant) when more queries are gathered than "
            "fit in a window: TENANT=WEIGHT, comma-separated. All other tenants have weight 1; "
            "queries without a tenant share one turn.",
        ),
    ] = ""
    policy: Annotated[
        PolicyName,
        Meta(
            description="Which queries share a group: per_window (all of a window); greedy (those "
            "similar to one member, CaGR-RAG's Algorithm 1); agglomerative (those similar to all "
            "members, its Eq. 3; loads scikit-learn); per_query (each query alone). The searcher "
            "shares reads between groups too, so smaller groups cost records and save no reads."
        ),
    ] = "per_window"
    linkage: Annotated[
        LinkageName,
        Meta(
            description="Which pairs must be similar for agglomerative: complete (every pair, Eq. "
            "3), average (the mean of all pairs), single (one pair). In this order, groups become "
            "larger and share less."
        ),
    ] = "complete"
    order: Annotated[
        OrderName,
        Meta(
            description="The order of groups, and of queries in a group: arrival, or "
            "nearest_chain (next is the query most similar to those just before). The searcher "
            "goes by cluster in an order of its own, so nearest_chain costs time and saves no "
            "reads there. No query overtakes one that has a deadline."
        ),
    ] = "arrival"
    jaccard_similarity_min: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Jaccard similarity of the clusters of two queries, 0 to 1, at which they "
            "join a group (theta of CaGR-RAG, 0.5; equal joins). Too low: large groups that share "
            "little. Too high: every query is a group of its own.",
        ),
    ] = 0.5
    scatter: Annotated[
        bool,
        Meta(
            description="Whether each lane ([kafka] lanes) scans its own share of the clusters for "
            "every query, and one lane merges what they find. true: for searchers whose codes do "
            "not fit in memory, which then keep different clusters. false: each query is searched "
            "by one searcher, which is faster where codes fit."
        ),
    ] = False
    nprobe: Annotated[
        int,
        Meta(
            ge=0,
            le=NPROBE_MAX,
            description="Clusters that a query probes unless it names a number; 0: the default of "
            "the index, 2.3 times the square root of its number of clusters. Too low: passages "
            "are missed. Too high: more bytes are read for each query.",
        ),
    ] = 0
    group_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            description="Encoded size in bytes at which a group is cut into several records; a "
            "larger query gets a record of its own. Too low: groups are cut often. Too high: "
            "large records. Must be below the record limit of the topic of groups.",
        ),
    ] = 4 * MIB
    intake_queries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Queries in the grouper at once: gathered, read ahead, and being planned. "
            "Too low: a short horizon and small windows. Too high: memory, and more work to "
            "repeat after a crash.",
        ),
    ] = 800
    intake_bytes_max: Annotated[
        int,
        Meta(
            ge=QUERY_BYTES_MAX,
            description="Bytes of these queries. Too low: large queries make small windows. Too "
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
