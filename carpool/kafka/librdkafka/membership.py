"""Caches the place of a member in its consumer group, as librdkafka knows it."""

from __future__ import annotations

from confluent_kafka import Consumer

from carpool.clock import Clock
from carpool.kafka.clients import Membership

MEMBERSHIP_US = 200_000
"""Maximum age of the cached membership without a rebalance.

A request to librdkafka waits for its main thread, and confluent-kafka blocks all threads of the
interpreter meanwhile.
"""


class CachedMembership:
    """The membership of one consumer. For the polling thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: Membership | None = None
        self._until_us = 0
        self._none: Membership | None = None

    def joined(self, consumer: Consumer) -> None:
        """Stores the result before the group is joined: it names no member, so it is not used."""
        self._none = consumer.consumer_group_metadata()

    def forget(self) -> None:
        """Empties the cache."""
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
