"""The seam between the loop and the ways to commit: finished work goes in, and is written and
acknowledged for good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.clients import ConsumerClient
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.in_flight import InFlight
from carpool.loop.stage import Done, Unit
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.metrics import Metrics


class Delivery(Protocol):
    """Commits finished work, on a thread of its own. `submit` and `hint` are thread-safe."""

    def start(self) -> None:
        """Starts the thread."""
        ...

    def submit(self, done: Done) -> None:
        """Takes finished work; returns at once. Bounded by what the loop takes in: every unit owes
        its parts once.
        """
        ...

    def hint(self, output: Output) -> None:
        """Takes a best-effort record; drops it when too many wait."""
        ...

    def attend(self) -> None:
        """Does what only the polling thread may do for a commit; called by it between polls,
        often.
        """
        ...

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        """Ends the running commit, commits what is finished, forgets the partitions, and returns
        the ids of their units.

        Called from inside the consumer's poll, on the polling thread. Does at most one commit; none
        when `lost`.
        """
        ...

    def close(self, until_us: int) -> bool:
        """Writes and commits what was submitted, until `until_us`; True when nothing is left."""
        ...

    @property
    def backlog(self) -> int:
        """Finished work that is not committed yet."""
        ...

    @property
    def next_commit_at_us(self) -> int:
        """When what is finished now is sent, at the earliest and as far as can be told, in epoch
        microseconds; 0: at once.
        """
        ...

    @property
    def is_full(self) -> bool:
        """Whether finished work waits because more is complete above a slow record than a commit
        can say.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryContext:
    """What the loop gives a delivery."""

    ledger: InFlight
    consumer: ConsumerClient
    clock: Clock
    metrics: Metrics
    observer: WorkObserver
    reoffer: Callable[[list[Unit[Any]]], None]
    """Takes the units whose finished work was discarded because it shared outputs with a lost
    partition.
    """
    fail: Callable[[CarpoolError], None]


MakeDelivery = Callable[[DeliveryContext], Delivery]
