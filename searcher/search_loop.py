"""What executors have in common: messages from other threads, windows, deadlines, waiting."""

from __future__ import annotations

import queue
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from carpool.clock import Clock
from searcher.executor import SearchGroup
from searcher.store.waker import Waker

WAIT_S_MAX = 60.0
"""Longest wait for a message. A longer timeout may overflow."""
WAIT_S_MIN = 0.0001
"""A wait that ends early would end at once, again and again."""


@dataclass(frozen=True, slots=True)
class StopSearching:
    """The last message."""


@dataclass(frozen=True, slots=True)
class DropSearches:
    """The searches `keys` are forgotten."""

    keys: tuple[int, ...]


class SearchLoop:
    """The base of executors. Methods without an underscore may be called by any thread."""

    def __init__(self, waker: Waker, clock: Clock) -> None:
        """`waker`: wakes the search thread when a read has ended, too."""
        self._waker = waker
        self._clock = clock
        self._mailbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._deadlines: dict[int, int] = {}  # of the searches in progress that have one
        self._window: object = object()  # of the group that joined last
        self._follows_next = False  # its window has no horizon but `next` of each group
        self._is_stopped = False

    def join(self, group: SearchGroup) -> None:
        """Adds a group; see `Executor.join`."""
        self._put(group)

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches; see `Executor.drop`."""
        self._put(DropSearches(tuple(keys)))

    def stop(self) -> None:
        """Ends `run`; see `Executor.stop`."""
        self._put(StopSearching())

    def _put(self, message: object) -> None:
        self._mailbox.put(message)
        self._waker.wake()

    # ---- the search thread

    def _begins_window(self, group: SearchGroup) -> bool:
        """Whether `group` is of another window than the one before it, or has advice of its own.

        Where no window is known but this one, each group says what the next one needs.
        """
        is_new = group.window is None or group.window != self._window
        self._window = group.window
        if is_new:
            self._follows_next = group.is_next
        return is_new or (group.is_next and self._follows_next)

    def _late(self) -> list[int]:
        """Returns the searches whose deadline has passed."""
        now_us = self._clock.now_us()
        return [key for key, deadline_us in self._deadlines.items() if now_us >= deadline_us]

    def _wait(self, *moments_us: int | None) -> None:
        """Blocks until there is a message, or until a deadline or the first of `moments_us`."""
        moments = [*self._deadlines.values(), *(at_us for at_us in moments_us if at_us is not None)]
        wait_s = WAIT_S_MAX
        if moments:
            wait_s = max(WAIT_S_MIN, (min(moments) - self._clock.now_us()) / 1_000_000)
        self._waker.wait(min(wait_s, WAIT_S_MAX))
