"""Which query wants which slice, and which slice to fetch next so that queries finish early.

The next slice belongs to the query that lacks the fewest bytes (shortest remaining work first); of
its slices it is the one that most queries want. If the query sends drafts, it is the nearest slice.
A query that later arrivals overtook `overtaken_max` times goes first, so that none starves. A query
with a deadline is never overtaken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from searcher.plan.slices import Slice, SliceId


@dataclass(slots=True)
class _QueryDemand:
    number: int
    deadline_us: int | None
    missing: dict[Slice, None]  # not scored yet, in the order of the query
    unfetched: dict[Slice, None]  # of `missing`: not in memory, and room is not reserved
    unfetched_bytes: int
    is_nearest_first: bool
    overtaken: int = 0
    skipped: list[SliceId] = field(default_factory=list)


class DoneQuery(NamedTuple):
    """A query whose last slice is scored or skipped, and the slices that were skipped."""

    query: int
    skipped: tuple[SliceId, ...]


class Demand:
    """The queries in progress. Query numbers are the caller's, each used once, growing with time.

    A call costs O(queries in progress) or less; `add` and `remove` cost O(slices of the query).
    """

    def __init__(self, overtaken_max: int) -> None:
        self._overtaken_max = overtaken_max
        self._queries: dict[int, _QueryDemand] = {}

    def __len__(self) -> int:
        """Returns the number of queries in progress."""
        return len(self._queries)

    def __contains__(self, query: int) -> bool:
        """Whether `query` is in progress."""
        return query in self._queries

    def add(
        self,
        query: int,
        wants: Iterable[Slice],
        deadline_us: int | None,
        unfetched: list[Slice],
        *,
        is_nearest_first: bool = False,
    ) -> None:
        """Adds a query that wants `wants`, each once and at least one; it lacks `unfetched`."""
        assert not self._queries or query > next(reversed(self._queries)), "numbers must grow"
        missing = dict.fromkeys(wants)
        self._queries[query] = _QueryDemand(
            number=query,
            deadline_us=deadline_us,
            missing=missing,
            unfetched=dict.fromkeys(unfetched),
            unfetched_bytes=sum(one.size_bytes for one in unfetched),
            is_nearest_first=is_nearest_first,
        )
        for one in missing:
            one.wanted_by[query] = None

    def remove(self, query: int) -> tuple[Slice, ...]:
        """Forgets a query; returns the slices that no query wants any more."""
        missing = self._queries.pop(query).missing
        for one in missing:
            del one.wanted_by[query]
        return tuple(one for one in missing if not one.wanted_by)

    def fetched(self, one: Slice) -> None:
        """`one` is in memory, or room for it is reserved. May be repeated."""
        for number in one.wanted_by:
            query = self._queries[number]
            if one in query.unfetched:
                del query.unfetched[one]
                query.unfetched_bytes -= one.size_bytes

    def scored(self, one: Slice, queries: tuple[int, ...]) -> tuple[DoneQuery, ...]:
        """`one` was scored for `queries`; forgets the queries that are done, and returns them."""
        return self._settle(one, queries, is_skipped=False)

    def skipped(self, one: Slice) -> tuple[DoneQuery, ...]:
        """`one` cannot be read: its queries go without it. Forgets those done, and returns them."""
        return self._settle(one, tuple(one.wanted_by), is_skipped=True)

    def lacks_any(self) -> bool:
        """Whether any query wants a slice that is not fetched."""
        return any(query.unfetched for query in self._queries.values())

    def next_slice(self) -> tuple[Slice, int] | None:
        """Returns the slice to fetch next and the query that it is for; None when none is."""
        lacking = [query for query in self._queries.values() if query.unfetched]
        if not lacking:
            return None
        first = min(lacking, key=self._urgency)
        if first.is_nearest_first:
            return next(iter(first.unfetched)), first.number
        return max(first.unfetched, key=lambda one: (len(one.wanted_by), -one.id)), first.number

    def missing(self, query: int) -> Collection[Slice]:
        """Returns the slices of a query in progress that are not scored yet."""
        return self._queries[query].missing.keys()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where queries and slices disagree."""
        for number, query in self._queries.items():
            assert query.missing, f"query {number} is done and still here"
            assert query.unfetched.keys() <= query.missing.keys()
            assert query.unfetched_bytes == sum(one.size_bytes for one in query.unfetched)
            for one in query.missing:
                assert number in one.wanted_by
                assert all(one in self._queries[other].missing for other in one.wanted_by)

    def _urgency(self, query: _QueryDemand) -> tuple[int, int, int]:
        if query.deadline_us is not None:
            return (0, query.deadline_us, query.number)
        if query.overtaken >= self._overtaken_max:
            return (1, query.number, query.number)
        return (2, query.unfetched_bytes, query.number)

    def _settle(
        self, one: Slice, queries: tuple[int, ...], *, is_skipped: bool
    ) -> tuple[DoneQuery, ...]:
        done = []
        for number in queries:
            query = self._queries.get(number)
            if query is None or one not in query.missing:
                continue  # dropped meanwhile
            del query.missing[one]
            del one.wanted_by[number]
            if one in query.unfetched:
                del query.unfetched[one]
                query.unfetched_bytes -= one.size_bytes
            if is_skipped:
                query.skipped.append(one.id)
            if not query.missing:
                done.append(DoneQuery(query=number, skipped=tuple(query.skipped)))
                del self._queries[number]
                self._count_overtaken(number)
        return tuple(done)

    def _count_overtaken(self, by: int) -> None:
        for query in self._queries.values():
            if query.number > by:
                return  # queries are in the order in which they joined
            query.overtaken += 1
