"""The lanes of this searcher: its share of scattered groups, and what it hears from other lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import TopicPartition
from carpool.kafka.topic_log import TopicLog
from schemas.group import Group, lane_of
from schemas.query import SearchMode
from schemas.record import ClusterId
from searcher.executor import Search
from searcher.scatter.scan_inbox import Deliver, ScanInbox
from searcher.scatter.scan_records import name_in_group
from searcher.scatter.share import Share, share_of


class Lanes:
    """For the polling thread, but for `forget` and `trouble`, which any thread may call.

    Scans of others are read from the first scattered group on.
    """

    def __init__(
        self,
        scans: TopicLog | None,
        deliver: Deliver,
        fail: Callable[[CarpoolError], None],
        clock: Clock,
    ) -> None:
        """`scans`: the log of scans; None: this searcher scans all clusters of its queries."""
        self._scans = scans
        self._deliver = deliver
        self._fail = fail
        self._clock = clock
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._inbox: ScanInbox | None = None

    @property
    def trouble(self) -> str | None:
        """Why the scans of other lanes cannot be read at the moment."""
        return None if self._inbox is None else self._inbox.trouble

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Adds partitions of groups."""
        self._set(self._partitions | frozenset(partitions))

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Removes partitions of groups."""
        self._set(self._partitions - frozenset(partitions))

    def _set(self, partitions: frozenset[TopicPartition]) -> None:
        self._partitions = partitions
        if self._inbox is not None:
            self._inbox.read(self._own())

    def _own(self) -> set[int]:
        return {at.partition for at in self._partitions}

    def shares(
        self, group: Group, parts: Collection[int], default_mode: SearchMode, *, scans_codes: bool
    ) -> dict[int, Share]:
        """Returns the share of the group's lane in each of `parts`; see `share_of`."""
        if group.is_scattered and self._scans is not None and self._inbox is None:
            self._inbox = ScanInbox(self._scans, self._deliver, self._fail, self._clock)
            self._inbox.start()
            self._inbox.read(self._own())
        return {
            part: share_of(
                group,
                group.queries[part],
                default_mode,
                own_lanes=self._own(),
                scans_codes=scans_codes,
                hears_others=self._inbox is not None,
            )
            for part in parts
        }

    def horizon(self, group: Group) -> dict[ClusterId, int]:
        """Returns in how many windows each cluster of this searcher is needed next.

        Without a horizon, it is the clusters of the first query of the next group (CaGR-RAG, Eq.
        4).
        """
        own = self._own() | {group.lane}
        windows = {entry.cluster: entry.windows for entry in group.horizon}
        if not windows and group.next is not None:
            windows = dict.fromkeys(group.next.clusters, 1)
        return {
            cluster: count
            for cluster, count in windows.items()
            if not group.is_scattered or lane_of(cluster, group.lane_count) in own
        }

    def expect(self, group: Group, part: int, search: Search) -> None:
        """Delivers what other lanes find for a search, from now on, and what they have found."""
        if self._inbox is not None and search.elsewhere:
            lanes = {lane_of(cluster, group.lane_count) for cluster in search.elsewhere}
            self._inbox.expect(name_in_group(group, group.queries[part]), search.key, lanes)

    def forget(self, group: Group, part: int, key: int) -> None:
        """The search `key` of a query has ended."""
        if self._inbox is not None:
            self._inbox.forget(name_in_group(group, group.queries[part]), key)

    def check_integrity(self, keys: Collection[int]) -> None:
        """Raises `AssertionError` where a search waits that is not among `keys`."""
        if self._inbox is not None:
            self._inbox.check_integrity(keys)

    def close(self) -> None:
        """Ends the thread that reads scans. Blocks for up to a second."""
        if self._inbox is not None:
            self._inbox.close()
