"""What librdkafka knows of a member's place in its consumer group, cached for a moment."""

from __future__ import annotations

from confluent_kafka import Consumer

from carpool.clock import Clock
from carpool.kafka.clients import Membership

MEMBERSHIP_US = 200_000
"""Maximum age of the cached membership, unless a rebalance came meanwhile. Asking librdkafka waits
for its main thread, and confluent-kafka blocks all threads of the interpreter until it answers.
"""


class CachedMembership:
    """The membership of one consumer. For the polling thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: Membership | None = None
        self._until_us = 0
        self._none: Membership | None = None

    def joined(self, consumer: Consumer) -> None:
        """Remembers what librdkafka returns before the group was joined: it names no member, and
        brokers would not check it.
        """
        self._none = consumer.consumer_group_metadata()

    def forget(self) -> None:
        """Asks librdkafka the next time."""
        self._known = None

    def of(self, consumer: Consumer | None, *, fresh: bool) -> Membership | None:
        """Returns group id, member id and generation or epoch; None while it is no member."""
        if consumer is None:
            return None
        now_us = self._clock.now_us()
        if fresh or self._known is None or now_us >= self._until_us:
            found: Membership = consumer.consumer_group_metadata()
            self._known = None if found == self._none else found
            self._until_us = now_us + MEMBERSHIP_US
        return self._known
