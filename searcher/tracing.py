"""What a trace shows of the searcher: the retrieval of a query, by the semantic conventions for
generative AI.
"""

from __future__ import annotations

from carpool.loop.tracing.operation import Operation
from searcher.executor import SearchResult


def retrieval(index_version: str, found: SearchResult, passages: int, ended_us: int) -> Operation:
    """Returns the search of a query, from when it was begun until its passages were fetched."""
    tiers = [probe.tier for probe in found.probes]
    return Operation(
        name=f"retrieval {index_version}",
        started_us=found.started_us,
        ended_us=ended_us,
        attributes={
            "gen_ai.operation.name": "retrieval",
            "gen_ai.data_source.id": index_version,
            "carpool.retrieval.passages": passages,
            "carpool.retrieval.clusters": len(tiers),
            "carpool.retrieval.clusters_skipped": len(found.skipped),
            "carpool.retrieval.clusters_from_disk": tiers.count("ssd"),
            "carpool.retrieval.bytes_read": found.bytes_read,
            "carpool.retrieval.load_us": found.load_us,
            "carpool.retrieval.search_us": found.search_us,
        },
    )
