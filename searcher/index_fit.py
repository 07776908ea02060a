"""Does a group fit the index that the searcher has open?"""

from __future__ import annotations

from carpool.disk.manifest import Manifest
from carpool.endings import stop_at
from carpool.errors import DeploymentError, RecordError
from carpool.loop.stage import Unit
from schemas.group import Group, GroupedQuery, GroupedSearch


def lags_behind(group: Group, manifest: Manifest) -> str:
    """Returns why a searcher cannot search a group of a newer index, and what to do."""
    return (
        f"this searcher has index {manifest.index_version}, and groups are planned with the newer "
        f"index {group.index_version}: its cluster ids mean nothing here. This member leaves its "
        "consumer group, so that a searcher with that index does the work; nothing is lost. "
        "Restart it with that index ([index] dir). To go back to the older index, make it the "
        "newest (`carpool index promote DIR`) and restart groupers and searchers with it"
    )


def check_fits(unit: Unit[Group], manifest: Manifest) -> None:
    """Raises `DeploymentError` where a group of the same index version does not fit the index."""
    group = unit.record
    for what, theirs, ours in (
        ("centroids", group.centroids_fingerprint, manifest.centroids_fingerprint),
        ("embedding model", group.embedding_model, manifest.embedding_model),
    ):
        if theirs != ours:
            raise DeploymentError(
                f"a group was planned with {what} {theirs}, and this searcher has {ours}: two "
                f"different indexes have the version {group.index_version}, so one of them was "
                "changed by hand. Give grouper and searcher the same index ([index] dir) and "
                "restart both; nothing is lost"
            )
    for grouped in group.queries:
        searches: tuple[GroupedQuery | GroupedSearch, ...] = (grouped, *grouped.other_searches)
        for search in searches:
            if len(search.vector) != manifest.dimension * 4:
                wrong = f"has a vector of {len(search.vector)} bytes; {manifest.dimension} float32 "
                wrong += f"values have {manifest.dimension * 4}"
            elif not all(0 <= cluster < manifest.nlist for cluster in search.clusters):
                wrong = f"probes a cluster that is not among the {manifest.nlist} of this index"
            else:
                continue
            error = RecordError("invalid_value", f"query {grouped.query.query_id} {wrong}")
            raise stop_at(unit.source, error, stage="searcher")
