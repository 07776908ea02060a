"""The seam between the loop and the ways to commit: finished work in, committed outputs out."""

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
    """Commits finished work on a thread of its own. `submit` and `hint` are thread-safe."""

    def start(self) -> None:
        """Makes the producer and starts the thread. Raises as the producer does."""
        ...

    def submit(self, done: Done) -> None:
        """Takes finished work; does not block. The intake bounds how much there can be."""
        ...

    def hint(self, output: Output) -> None:
        """Takes a best-effort record; drops it when too many wait."""
        ...

    def after_poll(self) -> None:
        """Does the part of a commit that only the polling thread may do. Called after each poll."""
        ...

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        """Commits what is finished, forgets the partitions, and returns the ids of their units.

        Called from inside the consumer's poll, on the polling thread. Waits for the running commit.
        Does at most one commit, and none when the partitions are `lost`.
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
        """Estimate of the earliest commit of work that finishes now, epoch microseconds.

        0: such work does not wait.
        """
        ...

    @property
    def is_full(self) -> bool:
        """Whether more is complete above a slow record than the metadata of a commit can list."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryContext:
    """What the loop gives a delivery."""

    in_flight: InFlight
    consumer: ConsumerClient
    clock: Clock
    metrics: Metrics
    observer: WorkObserver
    reoffer: Callable[[list[Unit[Any]]], None]
    """Takes units whose finished work was discarded: it shared outputs with a revoked partition."""
    fail: Callable[[CarpoolError], None]


MakeDelivery = Callable[[DeliveryContext], Delivery]
