"""Who wants which cluster, and which one to fetch next so that queries finish early.

The next cluster belongs to the query that lacks the fewest bytes (shortest remaining work first),
and of its clusters it is the one that most queries want. So that nobody starves, a query that later
arrivals overtook `overtaken_max` times goes first; and one with a deadline is never overtaken at
all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.record import ClusterId


@dataclass(slots=True)
class _Query:
    number: int
    deadline_us: int | None
    missing: dict[ClusterId, None]  # not scored yet, in the order of the query
    unfetched: dict[ClusterId, None]  # of `missing`: nobody has seen to its being in memory
    unfetched_bytes: int = 0
    overtaken: int = 0
    skipped: list[ClusterId] = field(default_factory=list)


class Finished(NamedTuple):
    """A query whose last cluster is settled, and what it had to go without."""

    query: int
    skipped: tuple[ClusterId, ...]


class Demand:
    """The books of the queries in hand. `query` numbers are the caller's, each used once, growing
    with time.

    Every call costs O(queries in hand) or less, but for `add` and `remove`: O(clusters of the
    query).
    """

    def __init__(self, size_bytes: Mapping[ClusterId, int], overtaken_max: int) -> None:
        self._size_bytes = size_bytes
        self._overtaken_max = overtaken_max
        self._queries: dict[int, _Query] = {}
        self._wanted: dict[ClusterId, dict[int, None]] = {}

    def __len__(self) -> int:
        """Returns the queries in hand."""
        return len(self._queries)

    def __contains__(self, query: int) -> bool:
        """Whether `query` is in hand."""
        return query in self._queries

    def wanting(self, cluster: ClusterId) -> tuple[int, ...]:
        """Returns the queries that want `cluster` scored, in the order in which they came."""
        return tuple(self._wanted.get(cluster, ()))

    def add(
        self,
        query: int,
        clusters: tuple[ClusterId, ...],
        deadline_us: int | None,
        *,
        unfetched: Collection[ClusterId],
    ) -> None:
        """Takes in a query that wants `clusters`, without repetition, at least one; `unfetched`:
        those that it lacks.
        """
        assert query not in self._queries and (
            not self._queries or query > next(reversed(self._queries))
        )
        wants = dict.fromkeys(clusters)
        self._queries[query] = _Query(
            number=query,
            deadline_us=deadline_us,
            missing=wants,
            unfetched=dict.fromkeys(unfetched),
            unfetched_bytes=sum(self._size_bytes[cluster] for cluster in unfetched),
        )
        for cluster in wants:
            self._wanted.setdefault(cluster, {})[query] = None

    def remove(self, query: int) -> tuple[ClusterId, ...]:
        """Forgets a query; returns the clusters that nobody wants any more."""
        gone = []
        for cluster in self._queries.pop(query).missing:
            if self._leave(cluster, query):
                gone.append(cluster)
        return tuple(gone)

    def fetched(self, cluster: ClusterId) -> None:
        """`cluster` is in memory or being read: whoever wants it lacks its bytes no more. May be
        said again.
        """
        for number in self._wanted.get(cluster, ()):
            query = self._queries[number]
            if cluster in query.unfetched:
                del query.unfetched[cluster]
                query.unfetched_bytes -= self._size_bytes[cluster]

    def unfetched(self, cluster: ClusterId) -> None:
        """`cluster` is not in memory and not being read after all: whoever wants it lacks it
        again.
        """
        for number in self._wanted.get(cluster, ()):
            query = self._queries[number]
            if cluster not in query.unfetched:
                query.unfetched[cluster] = None
                query.unfetched_bytes += self._size_bytes[cluster]

    def scored(self, cluster: ClusterId, queries: tuple[int, ...]) -> tuple[Finished, ...]:
        """`cluster` was scored for `queries`; returns those that are done now. They are
        forgotten.
        """
        return self._settle(cluster, queries, is_skipped=False)

    def skipped(self, cluster: ClusterId) -> tuple[Finished, ...]:
        """`cluster` cannot be had: who wants it goes without. Returns those that are done now; they
        are forgotten.
        """
        return self._settle(cluster, self.wanting(cluster), is_skipped=True)

    def lacks_any(self) -> bool:
        """Whether somebody wants a cluster that is not fetched."""
        return any(query.unfetched for query in self._queries.values())

    def next_cluster(self) -> tuple[ClusterId, int] | None:
        """Returns the cluster to fetch next and the query for whose sake, None when all that is
        wanted is fetched.
        """
        best: _Query | None = None
        best_key: tuple[int, int, int] | None = None
        for query in self._queries.values():
            if query.unfetched:
                key = self._turn(query)
                if best_key is None or key < best_key:
                    best, best_key = query, key
        if best is None:
            return None
        cluster = max(best.unfetched, key=lambda wanted: (len(self._wanted[wanted]), -wanted))
        return cluster, best.number

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books do not agree with each other."""
        for number, query in self._queries.items():
            assert query.missing, f"query {number} is done and still here"
            assert query.unfetched.keys() <= query.missing.keys()
            assert query.unfetched_bytes == sum(
                self._size_bytes[cluster] for cluster in query.unfetched
            )
            assert all(number in self._wanted[cluster] for cluster in query.missing)
        for cluster, numbers in self._wanted.items():
            assert numbers and all(cluster in self._queries[number].missing for number in numbers)

    # ---- inside

    def _turn(self, query: _Query) -> tuple[int, int, int]:
        if query.deadline_us is not None:
            return (0, query.deadline_us, query.number)
        if query.overtaken >= self._overtaken_max:
            return (1, query.number, query.number)
        return (2, query.unfetched_bytes, query.number)

    def _leave(self, cluster: ClusterId, query: int) -> bool:
        """`query` does not want `cluster` any more; whether nobody does."""
        numbers = self._wanted[cluster]
        del numbers[query]
        if not numbers:
            del self._wanted[cluster]
        return not numbers

    def _settle(
        self, cluster: ClusterId, queries: tuple[int, ...], *, is_skipped: bool
    ) -> tuple[Finished, ...]:
        finished = []
        for number in queries:
            query = self._queries.get(number)
            if query is None or cluster not in query.missing:
                continue  # dropped meanwhile
            del query.missing[cluster]
            if cluster in query.unfetched:
                del query.unfetched[cluster]
                query.unfetched_bytes -= self._size_bytes[cluster]
            if is_skipped:
                query.skipped.append(cluster)
            self._leave(cluster, number)
            if not query.missing:
                finished.append(Finished(query=number, skipped=tuple(query.skipped)))
                del self._queries[number]
                self._overtake(number)
        return tuple(finished)

    def _overtake(self, number: int) -> None:
        for other in self._queries.values():
            if other.number > number:
                return  # queries are in the order in which they came
            other.overtaken += 1
