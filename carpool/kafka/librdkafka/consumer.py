"""The consumer over librdkafka, with the consumer protocol (KIP-848) or cooperative-sticky."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient

from carpool.clock import Clock
from carpool.errors import DeploymentError, RetryableError
from carpool.kafka.client_config import RETRY_BACKOFF_MS, client_config
from carpool.kafka.clients import (
    CommitResult,
    Membership,
    Position,
    RebalanceListener,
    partitions_text,
)
from carpool.kafka.commit_metadata import head_of
from carpool.kafka.librdkafka.ask_brokers import brokers_with, missing_of
from carpool.kafka.librdkafka.committed import commit_now
from carpool.kafka.librdkafka.convert import KINDS, StructlogBridge, sort_error
from carpool.kafka.librdkafka.member_state import (
    CachedMembership,
    CommitRequests,
    GroupProtocol,
    WaitingRecords,
    choose_protocol,
    member_config,
    wake,
    wake_after_rebalance,
)
from carpool.kafka.librdkafka.namesake import configured_instance_id
from carpool.kafka.librdkafka.partition_handover import PartitionHandover, read_committed
from carpool.kafka.passed_through import flattened
from carpool.kafka.raw_records import (
    message_of,
    place_of,
    place_of_event,
    raw_partition,
    unreadable_batch,
)
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds
from carpool.kafka.unreadable import UNREADABLE, UnreadableBatches, pass_over

log = structlog.get_logger()


class LibrdkafkaConsumer:
    """A `ConsumerClient` over a real broker."""

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        clock: Clock,
        *,
        own_instance_id: str | None = None,
    ) -> None:
        """Connects in `subscribe`.

        `own_instance_id` is for members that commit in transactions. Such a member fences a dead
        member whose transaction blocks its partitions, and commits its instance id for every
        partition before it calls the listener.
        """
        self._settings = settings
        self._group = group
        self._name = own_instance_id or configured_instance_id(settings)
        self._handover = (
            None if own_instance_id is None else PartitionHandover(settings, group, own_instance_id)
        )
        self._ids = TopicIds(settings)
        self._commits = CommitRequests(settings, group)
        self._clock = clock
        self._topics: frozenset[str] = frozenset()
        self._member: Consumer | None = None
        self.protocol: GroupProtocol | None = None
        self._was_assigned = False
        self._waiting = WaitingRecords(settings)
        self._paused: frozenset[str] = frozenset()
        self._paused_partitions: frozenset[TopicPartition] = frozenset()
        self._held: set[TopicPartition] = set()  # paused in librdkafka, also while away
        self._listener: RebalanceListener | None = None
        self._membership = CachedMembership(clock)
        self._unreadable = UnreadableBatches()

    def subscribe(
        self, topic: str, listener: RebalanceListener, extra_topics: tuple[str, ...] = ()
    ) -> None:
        """Joins the group.

        Raises `ConfigError` when a topic is missing, `RetryableError` when no broker answers.
        """
        admin = AdminClient(client_config(self._settings), logger=StructlogBridge())
        brokers = brokers_with(admin, self._settings, (topic, *extra_topics))
        if self._handover is not None:
            self._handover.connect()
        self._ids.now((topic, *extra_topics))  # connects, too
        self._topics, self._listener = frozenset((topic, *extra_topics)), listener
        # Once: the brokers' settings may be unreadable later, and members must agree.
        known = self.protocol if self._was_assigned else None
        self._join(known or choose_protocol(self._settings, admin, brokers))

    def _join(self, protocol: GroupProtocol) -> None:
        self.protocol = protocol
        config = member_config(self._settings, self._group, protocol)
        config |= {
            # Operators see this name, and other members see by it that this instance is alive.
            "client.id": self._name,
            "on_commit": self._commits.done,
            # The pause between requests for offsets that a transaction blocks.
            "retry.backoff.ms": RETRY_BACKOFF_MS,
        }
        self._member = Consumer(config, logger=StructlogBridge())
        self._held.clear()
        self._membership.joined(self._member)
        self._consumer.subscribe(
            sorted(map(self._settings.broker_topic, self._topics)),
            on_assign=self._on_assign,
            on_revoke=partial(self._drop, lost=False),
            on_lost=partial(self._drop, lost=True),
        )
        log.info("joining the consumer group", group=self._group, protocol=protocol)

    @property
    def _assigned(self) -> Collection[TopicPartition]:
        return self._ids.begun

    @property
    def _may_go_classic(self) -> bool:
        """Whether to fall back to cooperative-sticky.

        Brokers that have the consumer protocol disabled report it in reply to the first heartbeat.
        """
        is_chosen = "group.protocol" in flattened(self._settings.librdkafka)
        return self.protocol == "consumer" and not is_chosen and not self._was_assigned

    @property
    def _consumer(self) -> Consumer:
        assert self._member is not None, "subscribe comes first"
        return self._member

    def _on_assign(self, consumer: Consumer, partitions: list[RawPartition]) -> None:
        self._membership.forget()
        # A partition must not be read from a guessed offset: the exception ends the process or the
        # intake.
        try:
            positions = self._begin(consumer, partitions) if partitions else {}
            ids = {at: head_of(now.metadata).topic_id for at, now in positions.items()}
        except Exception:
            consumer.incremental_assign([])  # otherwise confluent-kafka assigns the partitions
            raise
        begins = {at: now.offset for at, now in positions.items()}
        consumer.incremental_assign(
            [self._raw(at, OFFSET_BEGINNING if to is None else to) for at, to in begins.items()]
        )
        self._ids.begun |= ids
        self._was_assigned = True
        self._waiting.passed({at: to or 0 for at, to in begins.items()})
        self._hold(positions)
        wake_after_rebalance(consumer, [self._raw(at) for at in self._flowing()])
        log.info("partitions assigned", partitions=partitions_text(positions))
        if self._listener is not None:
            self._listener.assigned(positions)

    def _begin(
        self, consumer: Consumer, partitions: list[RawPartition]
    ) -> dict[TopicPartition, Position]:
        if self._handover is None:
            found = read_committed(self._settings, self._group, consumer, partitions)
            return self._ids.positions(found)
        return self._handover.begin(consumer, partitions, self._ids)

    def _drop(self, consumer: Consumer, partitions: list[RawPartition], *, lost: bool) -> None:
        self._membership.forget()
        gone = frozenset(place_of(self._settings, raw) for raw in partitions)
        log.info("partitions revoked", partitions=partitions_text(gone), lost=lost)
        self._commits.drop_waiting()
        if self._listener is not None:
            self._listener.revoked(gone, lost=lost)
            # Requests made meanwhile may contain these partitions, and brokers would accept them.
            self._commits.drop_waiting()
        self._ids.forget(gone)
        self._waiting.forget(gone)
        consumer.incremental_unassign(partitions)
        wake_after_rebalance(consumer, [self._raw(at) for at in self._flowing()])

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record; None after `timeout_s` or at the end of a partition.

        Raises `RetryableError` for a topic that was made again.
        """
        self._commits.send(self._consumer)
        if again := self._ids.made_again():
            raise RetryableError(
                f"{partitions_text(again)}: deleted and made again, so committed offsets are of "
                "other records: this member joins its group again, and reads from the beginning"
            )
        raw = self._polled(timeout_s)
        while raw is not None and (event := raw.error()) is not None:
            if (unreadable := self._event(raw, event)) is not None:
                return unreadable
            # The end of a partition often comes together with a record of another partition.
            raw = self._polled(0.0)
        if raw is None:
            return None
        message = message_of(self._settings, raw, self._clock.now_us())
        self._waiting.read(TopicPartition(message.source.topic, message.source.partition))
        return message

    def _polled(self, timeout_s: float) -> RawMessage | None:
        try:
            return self._consumer.poll(timeout_s)
        except KafkaException as error:
            raise sort_error(error.args[0]) from error

    def _event(self, raw: RawMessage, error: KafkaError) -> Message | None:
        """Handles what is no record. Returns a batch that is passed over."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._waiting.ended(place_of_event(self._settings, raw), raw.offset() or 0)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self._gap_found(TopicPartition(raw.topic() or "", raw.partition() or 0), error)
        elif KINDS.get(code) == "right":
            name = f"topic {raw.topic()}" if raw.topic() else f"group {self._group}"
            raise sort_error(error, f"Read on {name}")
        elif code == KafkaError._FATAL and self._may_go_classic:
            log.info("joining by the classic protocol", error=error.str())
            self._consumer.close()
            self._join("classic")
        elif code == KafkaError._FATAL:
            # A right that was taken away is fatal to this client; a new one joins by `subscribe`.
            raise DeploymentError(
                f"group {self._group} refuses this member, which needs Read on the group and "
                f"Describe on its topics: {error.str()}; allow what `carpool acls` prints"
            )
        else:
            log.warning(
                "broker trouble", error=error.str(), topic=raw.topic(), partition=raw.partition()
            )
            return self._fetch_failed(raw, error)
        return None

    def _gap_found(self, at: TopicPartition, error: KafkaError) -> None:
        """Reports a partition that librdkafka reads no more: its next offset is not in the log.

        `at`: with the brokers' name of the topic. Blocks while the brokers say what is missing.
        """
        text = missing_of(self._settings, self._group, at) or (
            f"{at.topic}[{at.partition}] cannot be read on: {error.str()}"
        )
        log.error("records are missing", error=text)
        place = TopicPartition(self._settings.logical_topic(at.topic), at.partition)
        if self._listener is not None and place in self._assigned:
            self._listener.fetch_failed(place, text, lasts=True)

    def _fetch_failed(self, raw: RawMessage, error: KafkaError) -> Message | None:
        at = place_of_event(self._settings, raw)
        if self._listener is None or at not in self._assigned:
            return None
        self._listener.fetch_failed(at, error.str())
        offset, now_us = raw.offset() or 0, self._clock.now_us()
        if error.code() not in UNREADABLE or not self._unreadable.failed(at, offset, now_us):
            return None
        try:
            return self._pass_over(at, offset, error.str())
        except (KafkaException, RetryableError) as failure:
            log.warning("an unreadable batch cannot be passed over yet", error=str(failure))
            return None

    def _pass_over(self, at: TopicPartition, offset: int, error: str) -> Message:
        """Seeks past the batch that begins at `offset`, and returns it. Blocks for a moment."""
        (position,) = self._consumer.position([self._raw(at)])
        first = max(offset, position.offset)
        end = pass_over(self._consumer, self._settings, at, first)
        self._waiting.passed({at: end})
        log.error("records were passed over", partition=at, first=first, last=end - 1, error=error)
        return unreadable_batch(at, first, end - 1, error, self._clock.now_us())

    def pause(
        self, topics: frozenset[str], partitions: frozenset[TopicPartition] = frozenset()
    ) -> None:
        """Stops the flow of their records, and lets all others flow."""
        self._paused, self._paused_partitions = topics, partitions
        if self._hold():
            wake(self._consumer, self._settings)

    def _hold(self, came: Collection[TopicPartition] = ()) -> bool:
        """Pauses and resumes only those that need it; returns whether one flows again.

        librdkafka may lose its own start of a partition, without an error, to a call that comes at
        the same moment (confluentinc/librdkafka issue 5591). `came`: those just assigned.
        """
        stopped = set(filter(self._is_stopped, self._assigned))
        flowing = self._held.intersection(self._assigned) - stopped
        if new := stopped - self._held.difference(came):
            self._consumer.pause([*map(self._raw, new)])
        if flowing:
            self._consumer.resume([*map(self._raw, flowing)])
        self._held = (self._held | stopped) - flowing
        return bool(flowing)

    def _raw(self, at: TopicPartition, offset: int = OFFSET_INVALID) -> RawPartition:
        return raw_partition(self._settings, at, offset)

    def _flowing(self) -> list[TopicPartition]:
        return [at for at in sorted(self._assigned) if not self._is_stopped(at)]

    def _is_stopped(self, at: TopicPartition) -> bool:
        return at.topic in self._paused or at in self._paused_partitions

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the known number of unread records of each assigned partition.

        The brokers are asked for the ends while partitions are paused or no record comes.
        """
        if self._member is None:
            return {}
        is_paused = bool(self._paused or self._paused_partitions)
        return self._waiting.counts(self._member, self._assigned, ask=is_paused)

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        self._commits.add(offsets, on_result)

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        commit_now(self._settings, self._group, self._consumer, offsets)

    def membership(self, *, fresh: bool = False) -> Membership | None:
        """Returns group id, member id and generation or epoch; None for no member."""
        return self._membership.of(self._member, fresh=fresh)

    def leave(self) -> None:
        """Leaves the group, serving the last revocation."""
        self._commits.forget_sent()
        if self._member is not None:
            self._member.close()
        self._member = None

    def close(self) -> None:
        self.leave()
        self._waiting.close()
        if self._handover is not None:
            self._handover.close()
