"""When does a window close? A state machine that never waits without a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin

STEP_WINDOWS = 8
"""A finished step of a workflow counts as much as waiting for so many windows."""
STALL_WINDOWS = 4
"""How many times `window_us_max` a window below `queries_min` waits for pending records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A closed window: the queries that are planned together, in arrival order."""

    window_id: int
    query_ids: tuple[int, ...]
    opened_us: int
    closed_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """No window closes now. Ask again at `until_us`; None: after the next change."""

    until_us: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gathered:
    size_bytes: int
    added_us: int
    tenant: str
    rank: int


class WindowPlanner:
    """Gathers queries and decides when the oldest of them leave, at most `queries_max` together.

    While the worker is busy no window closes, and arrivals gather. When the worker is free, a
    window closes as soon as no records are pending. Before a commit it stays open until `due_us`.
    While records are pending it stays open until it is full, or `window_us_max` old with at least
    `queries_min` queries. Below `queries_min` it stays open at most `STALL_WINDOWS` times as long:
    a broker that reports records but does not deliver them cannot block queries. While earlier
    windows are about to leave, only a full window closes. Closed later it would contain the same
    queries, so reading ahead changes no window. No query of a closed window is carried over.

    If more queries are gathered than fit, tenants take part by deficit round robin. Each query
    costs one, and a turn is worth the tenant's weight: the k-th query of a tenant is in a window
    before any other tenant gets more than k turns. Of one tenant, workflows that have begun go
    first, those with most finished steps before others. A query that has waited for `STEP_WINDOWS`
    windows counts as if it had one step more, so none starves.

    Not thread-safe. Every call is O(1) except for the queries it returns or drops; `close` sorts
    the gathered queries if they do not fit.
    """

    def __init__(
        self,
        *,
        queries_min: int,
        queries_max: int,
        window_us_max: int,
        weight_of: Callable[[str], int] = lambda _: 1,
        window_ids: Iterator[int] | None = None,
    ) -> None:
        """`weight_of` gives a tenant's weight, at least 1. Planners may share `window_ids`."""
        self._queries_min = queries_min
        self._queries_max = queries_max
        self._window_us_max = window_us_max
        self._gathered: dict[int, _Gathered] = {}
        self._size_bytes = 0
        self._closed = 0
        self._window_ids = window_ids if window_ids is not None else count()
        self._by_tenant: dict[str, dict[int, None]] = {}
        self._turns = DeficitRoundRobin(quantum=1, weight_of=weight_of)

    @property
    def queries(self) -> int:
        """Queries gathered and not yet in a closed window."""
        return len(self._gathered)

    @property
    def size_bytes(self) -> int:
        """Bytes of the queries gathered."""
        return self._size_bytes

    def ids(self) -> Iterator[int]:
        """Yields the ids of the gathered queries, in order of arrival."""
        return iter(self._gathered)

    def add(
        self, query_id: int, size_bytes: int, now_us: int, tenant: str = "", steps_done: int = 0
    ) -> None:
        """Adds a query, which is not gathered yet. `steps_done` counts those of its workflow."""
        assert query_id not in self._gathered, f"query {query_id} is in the window already"
        self._gathered[query_id] = _Gathered(
            size_bytes=size_bytes,
            added_us=now_us,
            tenant=tenant,
            rank=self._closed - STEP_WINDOWS * steps_done,
        )
        self._size_bytes += size_bytes
        self._by_tenant.setdefault(tenant, {})[query_id] = None
        self._turns.join(tenant)

    def drop(self, query_ids: frozenset[int]) -> None:
        """Removes gathered queries; unknown ids are ignored."""
        for query_id in query_ids & self._gathered.keys():
            self._remove(query_id)

    def wait(
        self, now_us: int, waiting: int, busy: bool, ahead: bool = False, due_us: int = 0
    ) -> Wait | None:
        """Returns how long to wait for the next window; None: it is due.

        `waiting`: pending records. `busy`: no worker is free. `ahead`: windows closed earlier have
        not left. `due_us`: a window that closes earlier would only wait for a commit.
        """
        if busy or not self._gathered or (ahead and len(self._gathered) < self._queries_max):
            return Wait(until_us=None)
        if len(self._gathered) >= self._queries_max:
            return None
        until_us = due_us
        if waiting > 0:
            is_small = len(self._gathered) < self._queries_min
            until_us = max(
                due_us, self._opened_us + self._window_us_max * (STALL_WINDOWS if is_small else 1)
            )
        return Wait(until_us=until_us) if now_us < until_us else None

    def close(self, now_us: int) -> Window:
        """Closes a window of at most `queries_max` gathered queries, of which there is one."""
        opened_us = self._opened_us
        chosen = (
            set(self._in_turn())
            if len(self._gathered) > self._queries_max
            else self._gathered.keys()
        )
        query_ids = tuple(query_id for query_id in self._gathered if query_id in chosen)
        for query_id in query_ids:
            self._remove(query_id)
        self._closed += 1
        return Window(
            window_id=next(self._window_ids),
            query_ids=query_ids,
            opened_us=opened_us,
            closed_us=now_us,
        )

    def check_integrity(self) -> None:
        """Asserts that the accounting adds up."""
        assert self._size_bytes == sum(gathered.size_bytes for gathered in self._gathered.values())
        assert {
            query_id for ids in self._by_tenant.values() for query_id in ids
        } == self._gathered.keys()
        assert all(self._by_tenant.values())
        assert len(self._turns) == len(self._by_tenant)

    @property
    def _opened_us(self) -> int:
        return next(iter(self._gathered.values())).added_us

    def _in_turn(self) -> Iterator[int]:
        """The ids of the queries that fill a window."""
        waiting = {
            tenant: iter(sorted(ids, key=lambda query_id: self._gathered[query_id].rank))
            for tenant, ids in self._by_tenant.items()
        }
        left = {tenant: len(ids) for tenant, ids in self._by_tenant.items()}
        for _ in range(self._queries_max):
            tenant = self._turns.next(lambda tenant: 1 if left[tenant] else None)
            assert tenant is not None, "more are gathered than the window takes"
            left[tenant] -= 1
            yield next(waiting[tenant])

    def _remove(self, query_id: int) -> None:
        gathered = self._gathered.pop(query_id)
        self._size_bytes -= gathered.size_bytes
        ids = self._by_tenant[gathered.tenant]
        del ids[query_id]
        if not ids:
            del self._by_tenant[gathered.tenant]
            self._turns.leave(gathered.tenant)
