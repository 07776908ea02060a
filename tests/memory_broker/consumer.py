"""The consumer of the broker in memory: rebalances, takeovers and claims inside `poll`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from carpool.errors import CarpoolError, FencedError, RetryableError
from carpool.kafka.clients import (
    CommitResult,
    Membership,
    Position,
    RebalanceListener,
    partitions_text,
)
from carpool.kafka.fencing import (
    Takeover,
    Transaction,
    claims,
    left_by_the_dead,
    previous_owners,
    transactional_id,
)
from carpool.kafka.records import Message, TopicPartition
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.groups import ConsumerGroup, MemoryMembership

REQUEST_TIMEOUT_US = 10_000_000


class MemoryConsumer:
    """A `ConsumerClient` of a `MemoryBroker`. No call blocks; `poll` retries what takes time."""

    def __init__(
        self, broker: MemoryBroker, group: str, *, own_instance_id: str | None = None
    ) -> None:
        """`own_instance_id`: for members that commit in transactions."""
        self._broker = broker
        self._group_name = group
        self._own_instance_id = own_instance_id
        self._listener: RebalanceListener | None = None
        self._joined: ConsumerGroup | None = None
        self._generation = 0
        self._topics: tuple[str, ...] = ()
        self._next: dict[TopicPartition, int] = {}
        self._waiting_since_us: int | None = None
        self._takeover = Takeover()
        self._paused: frozenset[str] = frozenset()
        self._paused_partitions: frozenset[TopicPartition] = frozenset()
        self._claimed: set[TopicPartition] = set()
        self._requests: deque[tuple[dict[TopicPartition, Position], CommitResult]] = deque()
        self.target: frozenset[TopicPartition] = frozenset()

    @property
    def _group(self) -> ConsumerGroup:
        assert self._joined is not None, "subscribe comes first"
        return self._joined

    def subscribe(
        self, topic: str, listener: RebalanceListener, extra_topics: tuple[str, ...] = ()
    ) -> None:
        """Joins the group."""
        self._joined = self._broker.join(self._group_name, self, (topic, *extra_topics))
        self._topics, self._listener = (topic, *extra_topics), listener

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record of any assigned partition, or None."""
        self._serve_commits()
        self._rebalance()
        with self._broker.lock:
            not_paused = self._next.keys() - self._paused_partitions
            for at in sorted(at for at in not_paused if at.topic not in self._paused):
                log = self._broker.logs[at]
                if self._next[at] > len(log):
                    assert self._listener is not None, "subscribe comes first"
                    error = f"offset {self._next[at]} of {at} is beyond the end of the log"
                    self._listener.fetch_failed(at, error, lasts=True)
                    continue
                found = log.next_committed(self._next[at])
                if found is not None:
                    offset, entry = found
                    self._next[at] = offset + 1
                    return self._broker.message(at, offset, entry)
        return None

    def _rebalance(self) -> None:
        with self._broker.lock:
            is_member = self in self._group.members
        if not is_member:
            self._drop(frozenset(self._next), lost=True)
            self._broker.join(self._group_name, self, self._topics)
        with self._broker.lock:
            self._generation = self._group.generation
            gone = frozenset(self._next) - self.target
        self._drop(gone, lost=False)
        with self._broker.lock:
            taken = {
                at
                for member in self._group.members
                if isinstance(member, MemoryConsumer)
                for at in member._next
            }
            came = [at for at in sorted(self.target) if at not in taken]
        positions = self._begin(came)
        with self._broker.lock:
            self._next |= {at: position.offset or 0 for at, position in positions.items()}
        if positions:
            assert self._listener is not None, "subscribe comes first"
            self._listener.assigned(positions)

    def _drop(self, gone: frozenset[TopicPartition], *, lost: bool) -> None:
        if not gone:
            return
        self._requests.clear()
        assert self._listener is not None, "subscribe comes first"
        # Without the broker's lock: the listener waits for a commit that needs it.
        self._listener.revoked(gone, lost=lost)
        with self._broker.lock:
            for at in gone:
                del self._next[at]

    def _begin(self, came: list[TopicPartition]) -> dict[TopicPartition, Position]:
        """Returns where to begin these partitions, claimed; empty while that is unknown."""
        now_us = self._broker.clock.now_us()
        if not came:
            self._waiting_since_us = None
            return {}
        if self._waiting_since_us is None:
            self._waiting_since_us, self._takeover = now_us, Takeover()
        try:
            self._end_transactions(came, now_us)
            positions = self._claim(self._committed(came))
        except RetryableError:
            if now_us - self._waiting_since_us >= REQUEST_TIMEOUT_US:
                raise
            return {}
        self._waiting_since_us = None
        return positions

    def _end_transactions(self, came: list[TopicPartition], now_us: int) -> None:
        """Fences the last owners as `Takeover` decides; see `PartitionHandover`."""
        if self._own_instance_id is None:
            return
        with self._broker.serve("read_offsets"):
            last = [self._group.positions[at] for at in came if at in self._group.positions]
            owners = previous_owners(last, self._own_instance_id)
            began_us = {
                owner: self._broker.transactions.began_us(self._transactional_id(owner))
                for owner in owners
            }
            living = {
                member._own_instance_id
                for member in self._group.members
                if isinstance(member, MemoryConsumer) and member._own_instance_id is not None
            }
        unfinished = {
            owner: Transaction(started_at=began, is_ending=False)
            for owner, began in began_us.items()
            if began is not None
        }
        steps = self._takeover.decide(unfinished, living, now_us / 1_000_000)
        for owner in steps.fence:
            with self._broker.serve("start"):
                self._broker.transactions.start(self._transactional_id(owner))
        if steps.wait:
            raise RetryableError(f"the transactions of {', '.join(steps.wait)} have not ended")

    def _transactional_id(self, instance_id: str) -> str:
        return transactional_id(self._group_name, instance_id)

    def _committed(self, came: list[TopicPartition]) -> dict[TopicPartition, Position]:
        """Returns stable offsets. Raises `RetryableError` while a transaction blocks them."""
        with self._broker.serve("read_offsets"):
            unstable = self._broker.transactions.unstable(self._group_name).intersection(came)
            known = {at: self._group.positions.get(at, Position(None, "")) for at in came}
        if unstable:
            raise RetryableError(f"a transaction blocks the offsets of {partitions_text(unstable)}")
        return known

    def _claim(self, positions: dict[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Commits this member's instance id for these partitions."""
        if self._own_instance_id is None:
            return positions
        begun = {
            at: Position(position.offset or 0, position.metadata)
            for at, position in positions.items()
        }
        left = left_by_the_dead(begun, self._own_instance_id, self._claimed)
        with self._broker.lock:
            ends = {at: len(self._broker.logs[at]) for at in left}
        claimed = claims(begun, self._own_instance_id, ends)
        self._claimed |= set(claimed)
        try:
            self.commit_now(claimed)
        except FencedError:
            # The group removed this member; its next poll revokes these partitions.
            return positions
        return claimed

    def pause(
        self, topics: frozenset[str], partitions: frozenset[TopicPartition] = frozenset()
    ) -> None:
        """Pauses exactly these topics and partitions."""
        self._paused, self._paused_partitions = topics, partitions

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns high watermark less position; 0 where only transaction markers remain."""
        with self._broker.lock:
            return {
                at: len(self._broker.logs[at]) - offset
                if self._broker.logs[at].next_committed(offset)
                else 0
                for at, offset in self._next.items()
            }

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Queues a request for the next `poll`."""
        self._requests.append((dict(offsets), on_result))

    def _serve_commits(self) -> None:
        while self._requests:
            offsets, on_result = self._requests.popleft()
            error: CarpoolError | None = None
            try:
                self.commit_now(offsets)
            except CarpoolError as failed:
                error = failed
            on_result(error)

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Commits. As at real brokers, membership is checked, ownership is not."""
        with self._broker.serve("commit_offsets"):
            if self not in self._group.members:
                raise FencedError("this member has left the group; what it commits now is refused")
            self._group.commit(
                {at: (self._group.next_write(), position) for at, position in offsets.items()}
            )

    def membership(self, *, fresh: bool = False) -> Membership | None:
        """Returns this member as it was at its last `poll`."""
        with self._broker.lock:
            if self._joined is None or self not in self._joined.members:
                return None
            return MemoryMembership(self._group_name, self, self._generation)

    def close(self) -> None:
        """Gives up the partitions and leaves the group."""
        self.leave()

    def leave(self) -> None:
        """Gives up the partitions and leaves the group."""
        with self._broker.lock:
            if self._joined is None or self not in self._joined.members:
                return
            self._generation = self._joined.generation
        self._drop(frozenset(self._next), lost=False)
        with self._broker.lock:
            self._group.leave(self)

    def crash(self) -> None:
        """Leaves as a killed process does: calls no listener, commits nothing."""
        with self._broker.lock:
            self._next.clear()
            if self._joined is not None and self in self._joined.members:
                self._joined.leave(self)
