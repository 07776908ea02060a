"""The progress of all assigned partitions, and what of it is not committed yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from carpool.errors import DeploymentError
from carpool.kafka.clients import Position
from carpool.kafka.records import TopicPartition
from carpool.loop.partition_progress import PartitionProgress, Place

RECORDS_AHEAD_MAX = 1_000_000
METADATA_STOP_BYTES = 3_072
"""A partition with longer commit metadata is full: brokers refuse 4,096 bytes."""


class Positions:
    """Thread-safe; short calls under one lock. Unknown partitions were revoked, and are skipped."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Guards what follows; `AloneUnits` uses it too."""
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.moved: set[TopicPartition] = set()  # partitions to commit
        self._committed: dict[TopicPartition, int] = {}  # by this member

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Adds these partitions, from their committed positions.

        Raises `DeploymentError` for metadata that cannot be read, and then adds none.
        """
        added = {at: _progress(at, position) for at, position in positions.items()}
        with self.lock:
            self.progress |= added

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        with self.lock:
            return frozenset(self.progress)

    def take(self, at: TopicPartition, offset: int, parts: int) -> frozenset[int]:
        """Adds an accepted record, and returns the parts that an earlier process completed.

        All of them, if its partition is not assigned.
        """
        with self.lock:
            if (progress := self.progress.get(at)) is None:
                return frozenset(range(parts))
            done = progress.take(offset, parts)
            if len(done) == parts:
                self.moved.add(at)
            return done

    def complete(self, place: Place) -> None:
        """Marks a part as complete: its outputs are written."""
        with self.lock:
            if (progress := self.progress.get(place.at)) is not None:
                progress.complete(place.offset, place.part)
                self.moved.add(place.at)

    def after(self, places: Iterable[Place]) -> dict[TopicPartition, Position]:
        """Returns the positions of moved partitions as they will be once these are complete too.

        Changes nothing.
        """
        with self.lock:
            completions: dict[TopicPartition, dict[int, set[int]]] = {at: {} for at in self.moved}
            for at, offset, part in places:
                if at in self.progress:
                    completions.setdefault(at, {}).setdefault(offset, set()).add(part)
            return {at: self.progress[at].position_with(parts) for at, parts in completions.items()}

    def committed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Notes that these positions are committed."""
        with self.lock:
            for at, position in positions.items():
                progress = self.progress.get(at)
                if progress is None or position.offset is None:
                    continue
                self._committed[at] = position.offset
                if progress.position_with({}) == position:
                    self.moved.discard(at)

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """Returns the last offset that this member committed, by assigned partition."""
        with self.lock:
            return dict(self._committed)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a completed part waits for its commit."""
        return bool(self.moved)

    def full(self) -> frozenset[TopicPartition]:
        """Returns the partitions that must not be read on until a slow record is complete.

        They are `RECORDS_AHEAD_MAX` offsets ahead of that record, or their commit metadata is
        nearly as long as brokers accept. A partition without records in flight is never full: it
        must accept its slow record first.
        """
        with self.lock:
            return frozenset(
                at
                for at, progress in self.progress.items()
                if progress.in_flight
                and (
                    progress.ahead >= RECORDS_AHEAD_MAX
                    or len(progress.position_with({}).metadata) > METADATA_STOP_BYTES
                )
            )

    def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Forgets these partitions."""
        with self.lock:
            for at in partitions:
                self.progress.pop(at, None)
                self._committed.pop(at, None)
                self.moved.discard(at)

    def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Lets the next commit say that no one has these partitions in hand."""
        with self.lock:
            for at in partitions & self.progress.keys():
                self.progress[at].give_up()
                self.moved.add(at)

    @property
    def given_up(self) -> frozenset[TopicPartition]:
        """The assigned partitions that were given up."""
        with self.lock:
            return frozenset(at for at, each in self.progress.items() if each.is_given_up)


def _progress(at: TopicPartition, position: Position) -> PartitionProgress:
    try:
        return PartitionProgress(position.offset, position.metadata)
    except DeploymentError as error:
        raise DeploymentError(f"{at.topic}[{at.partition}]: {error}") from error
