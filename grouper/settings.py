"""The section `[grouper]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from carpool.settings import Settings
from grouper.plan.tenants import parse_weights
from schemas.query import NPROBE_MAX


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
    window_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Milliseconds that a window waits for pending records; with less than a "
            "fifth of window_queries_max, four times as long. Too low: smaller windows under a "
            "backlog. Too high: latency. An idle system never waits.",
        ),
    ] = 50
    horizon_windows: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Full windows that are read, embedded and probed before the current one "
            "leaves, to fill its horizon; 0: none. No window waits for them, so the horizon of "
            "texts, which take longer to embed than to plan, is empty. Nothing is read ahead "
            "where, by budget_bytes, the codes of the index fit in memory. Too low: the searcher "
            "knows less of the next windows. Too high: memory, larger records, and more work to "
            "repeat after a crash.",
        ),
    ] = 4
    tenant_weights: Annotated[
        str,
        Meta(
            description="Turns of tenants (header rag-tenant) when more queries are gathered than "
            "fit in a window: TENANT=WEIGHT, comma-separated. All other tenants have weight 1; "
            "queries without a tenant share one turn.",
        ),
    ] = ""
    policy: Annotated[
        Literal["per_window", "greedy"],
        Meta(
            description="Which queries share a group: per_window (all of a window), or greedy "
            "(those that probe the same clusters as one member, CaGR-RAG's Algorithm 1). The "
            "searcher shares reads between groups too, so smaller groups cost records and save no "
            "reads."
        ),
    ] = "per_window"
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
    nprobe: Annotated[
        int,
        Meta(
            ge=0,
            le=NPROBE_MAX,
            description="Clusters that a query probes unless it names a number; 0: the default of "
            "the index, which a formula chose, or `carpool index tune`. Too low: passages are "
            "missed. Too high: each query takes longer.",
        ),
    ] = 0

    @property
    def window_queries_min(self) -> int:
        """Queries that a window waits for while records are pending (CaGR-RAG: 20 of 100)."""
        return -(-self.window_queries_max // 5)

    @property
    def intake_queries_max(self) -> int:
        """Queries in the grouper at once: gathered, read ahead, and being planned."""
        return (self.horizon_windows + 4) * self.window_queries_max

    def check(self) -> list[str]:
        """Returns what is wrong between these values."""
        try:
            parse_weights(self.tenant_weights)
        except ValueError as error:
            return [f"tenant_weights: {error}"]
        return []
