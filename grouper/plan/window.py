"""When does a window close? A state machine for windows that conserve work: nobody waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass

STALL_WINDOWS = 4
"""How many times `window_us_max` a window below its least size waits for records that are known to be on their way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A closed window: the queries that are planned together, in arrival order."""

    window_id: int
    query_ids: tuple[int, ...]
    opened_us: int
    closed_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Nothing closes now. Ask again at `until_us`, or after the next change where that is None."""

    until_us: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gathered:
    size_bytes: int
    added_us: int


class WindowPlanner:
    """Gathers queries and says when the oldest of them leave, at most `queries_max` together.

    While the worker is busy nothing closes: arrivals gather. When it is free, what is there leaves at once if nothing
    more is known to wait. Under a backlog a window goes on until it is full or `window_us_max` old with at least
    `queries_min`; below that it goes on for at most `STALL_WINDOWS` times as long, so that a broker that knows of
    records but does not hand them out cannot hold queries. While earlier windows are still about to leave, only a full
    window closes: closed later it would hold the same queries, so that reading ahead changes no window. A window
    leaves whole: nothing of it is carried over.

    Not thread-safe. Every call is O(1) but for the queries it returns or drops.
    """

    def __init__(self, *, queries_min: int, queries_max: int, window_us_max: int) -> None:
        if not 1 <= queries_min <= queries_max or window_us_max < 0:
            raise ValueError(
                f"a window needs 1 <= {queries_min} <= {queries_max} queries and a time >= 0: {window_us_max}"
            )
        self._queries_min = queries_min
        self._queries_max = queries_max
        self._window_us_max = window_us_max
        self._gathered: dict[int, _Gathered] = {}
        self._size_bytes = 0
        self._next_window_id = 0

    @property
    def queries(self) -> int:
        """Queries gathered and not yet in a closed window."""
        return len(self._gathered)

    @property
    def size_bytes(self) -> int:
        """Bytes of the queries gathered."""
        return self._size_bytes

    def add(self, query_id: int, size_bytes: int, now_us: int) -> None:
        """Takes one query in. `query_id` must not be gathered already."""
        if query_id in self._gathered:
            raise ValueError(f"query {query_id} is in the window already")
        self._gathered[query_id] = _Gathered(size_bytes=size_bytes, added_us=now_us)
        self._size_bytes += size_bytes

    def drop(self, query_ids: frozenset[int]) -> None:
        """Forgets those of `query_ids` that are gathered; unknown ones are ignored."""
        for query_id in query_ids & self._gathered.keys():
            self._size_bytes -= self._gathered.pop(query_id).size_bytes

    def step(self, now_us: int, waiting: int, busy: bool, ahead: bool = False) -> Window | Wait:
        """Closes a window or says how long to wait.

        `waiting`: records known to be on their way; `busy`: nobody is free; `ahead`: windows closed earlier have not left.
        """
        if busy or not self._gathered or (ahead and len(self._gathered) < self._queries_max):
            return Wait(until_us=None)
        opened_us = next(iter(self._gathered.values())).added_us
        if waiting > 0 and len(self._gathered) < self._queries_max:
            is_small = len(self._gathered) < self._queries_min
            until_us = opened_us + self._window_us_max * (STALL_WINDOWS if is_small else 1)
            if now_us < until_us:
                return Wait(until_us=until_us)
        return self._close(opened_us, now_us)

    def check_integrity(self) -> None:
        """Asserts that the books add up."""
        assert self._size_bytes == sum(gathered.size_bytes for gathered in self._gathered.values())
        assert self._next_window_id >= 0

    def _close(self, opened_us: int, now_us: int) -> Window:
        query_ids = tuple(self._gathered)[: self._queries_max]
        for query_id in query_ids:
            self._size_bytes -= self._gathered.pop(query_id).size_bytes
        window = Window(window_id=self._next_window_id, query_ids=query_ids, opened_us=opened_us, closed_us=now_us)
        self._next_window_id += 1
        return window
