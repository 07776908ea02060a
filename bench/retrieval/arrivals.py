"""How queries arrive: a closed loop with one window outstanding, and an open one at a Poisson rate.
Both implement `Arrivals`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.retrieval.contestant import ContestantError, Dataset, Int32, Int64, Query, Window

NowUs = Callable[[], int]
SleepUs = Callable[[int], None]


def monotonic_us() -> int:
    """Returns CLOCK_MONOTONIC in microseconds: the same clock in every process of a machine."""
    return time.monotonic_ns() // 1_000


def sleep_us(duration_us: int) -> None:
    """Sleeps."""
    time.sleep(duration_us / 1e6)


class _Source:
    """What both loops share: the books of what was taken and answered. Raises `ContestantError` for
    what does not add up.
    """

    def __init__(
        self, dataset: Dataset, numbers: Sequence[int], window: int, now_us: NowUs
    ) -> None:
        self._dataset = dataset
        self._numbers = tuple(numbers)
        self._window = window
        self._now_us = now_us
        self._taken = 0
        self._windows = 0
        self._owed: dict[int, int] = {}

    def now_us(self) -> int:
        """Returns the clock of the run."""
        return self._now_us()

    def answered(self, query: int) -> int:
        """Takes note of a final and returns when its query had arrived. Raises `ContestantError`
        for one that is not owed.
        """
        try:
            return self._owed.pop(query)
        except KeyError:
            raise ContestantError(
                f"query {query} got a final that nobody waits for: it was answered, or never asked"
            ) from None

    def arrived_us(self, query: int) -> int:
        """Returns when a query that is not answered yet arrived. Raises `ContestantError` for
        another one.
        """
        try:
            return self._owed[query]
        except KeyError:
            raise ContestantError(
                f"query {query} got a draft after its final, or without having been asked"
            ) from None

    @property
    def owed(self) -> int:
        """Queries taken and not answered."""
        return len(self._owed)

    @property
    def taken(self) -> int:
        """Queries taken."""
        return self._taken

    def _give(self, count: int, arrived: Callable[[int], int]) -> Window:
        queries = []
        for position in range(self._taken, self._taken + count):
            number = self._numbers[position]
            query = Query(
                number,
                self._dataset.queries[number],
                self._dataset.probes[number],
                arrived(position),
            )
            self._owed[number] = query.arrived_us
            queries.append(query)
        self._taken += count
        self._windows += 1
        return Window(self._windows - 1, queries[0].arrived_us, tuple(queries))

    def _probes(self, start: int, stop: int, windows: int) -> tuple[Int32, ...]:
        bounds = [(at, min(at + self._window, stop)) for at in range(start, stop, self._window)][
            :windows
        ]
        return tuple(
            self._dataset.probes[list(self._numbers[first:last])] for first, last in bounds
        )


class ClosedLoop(_Source):
    """The next window appears when every query of the last one is answered."""

    def __init__(
        self, dataset: Dataset, numbers: Sequence[int], *, window: int, now_us: NowUs = monotonic_us
    ) -> None:
        """`numbers`: rows of the queries in the order of their arrival."""
        super().__init__(dataset, numbers, window, now_us)

    def take(self, timeout_us: int | None = None) -> Window | None:
        """Returns the next window; see `Arrivals.take`."""
        if self._owed:
            if timeout_us is None:
                raise ContestantError(
                    f"it waits for the next window and owes {len(self._owed)} finals of this one"
                )
            return None
        count = min(self._window, len(self._numbers) - self._taken)
        if not count:
            return None
        now_us = self.now_us()
        return self._give(count, lambda _: now_us)

    @property
    def ended(self) -> bool:
        """Whether all was taken."""
        return self._taken == len(self._numbers)

    def ahead(self, windows: int) -> tuple[Int32, ...]:
        """Returns the probes of the windows behind this one; see `Arrivals.ahead`."""
        return self._probes(self._taken, len(self._numbers), windows)


class OpenLoop(_Source):
    """Queries arrive when they are due, whether or not earlier ones are answered."""

    def __init__(
        self,
        dataset: Dataset,
        numbers: Sequence[int],
        *,
        due_us: Int64,
        window: int,
        now_us: NowUs = monotonic_us,
        sleep: SleepUs = sleep_us,
    ) -> None:
        """`due_us`: (len(numbers),) int64, ascending, from the first call of `take` on."""
        super().__init__(dataset, numbers, window, now_us)
        self._due_us = due_us
        self._sleep = sleep
        self._start_us: int | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Nothing arrives any more: the rate is judged."""
        self._is_stopped = True

    def take(self, timeout_us: int | None = None) -> Window | None:
        """Returns what has arrived, or waits for the next query; see `Arrivals.take`."""
        now_us = self.now_us()
        if self._start_us is None:
            self._start_us = now_us
        if self.ended:
            return None
        next_us = self._due(self._taken)
        if next_us > now_us:
            wait_us = next_us - now_us if timeout_us is None else min(next_us - now_us, timeout_us)
            if wait_us > 0:
                self._sleep(wait_us)
                now_us = self.now_us()
            if next_us > now_us and timeout_us is not None:
                return None
        count = min(self._arrived(max(now_us, next_us)) - self._taken, self._window)
        return self._give(count, self._due)

    @property
    def ended(self) -> bool:
        """Whether nothing will arrive any more."""
        return self._is_stopped or self._taken == len(self._numbers)

    def ahead(self, windows: int) -> tuple[Int32, ...]:
        """Returns the probes of what has arrived and was not taken; see `Arrivals.ahead`."""
        return self._probes(self._taken, self._arrived(self.now_us()), windows)

    def _due(self, position: int) -> int:
        assert self._start_us is not None
        return self._start_us + int(self._due_us[position])

    def _arrived(self, now_us: int) -> int:
        if self._is_stopped or self._start_us is None:
            return self._taken
        return max(
            self._taken, int(np.searchsorted(self._due_us, now_us - self._start_us, side="right"))
        )


def poisson_due_us(count: int, rate_per_s: float, rng: np.random.Generator) -> Int64:
    """Returns when `count` queries of a Poisson stream are due: (count,) int64, ascending, the
    first after a gap.
    """
    gaps_us = rng.exponential(1e6 / rate_per_s, count)
    return np.cumsum(gaps_us).astype(np.int64)
