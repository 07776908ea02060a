"""Asks the brokers for the ids of topics: one that was deleted and made again has another id."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient, TopicDescription

from carpool.errors import RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.cluster import quiet_admin
from carpool.kafka.commit_metadata import in_topic
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

ASK_EVERY_S = 5.0
NO_ID = str(Uuid(0, 0))
"""What brokers without ids of topics say."""
UNSEEN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)


class TopicIds:
    """The ids of topics, without those that the brokers do not tell. For one thread.

    `begun`: the partitions that are read, with the ids that their topics had then.
    """

    def __init__(self, settings: KafkaSettings, *, every_s: float = ASK_EVERY_S) -> None:
        """Connects with the first request. `every_s`: how often `made_again` asks."""
        self._settings = settings
        self._every_s = every_s
        self.begun: dict[TopicPartition, str | None] = {}
        self._admin: AdminClient | None = None
        self._asked: Mapping[str, Future[TopicDescription]] = {}
        self._ask_at_s = 0.0

    def now(self, topics: Iterable[str]) -> dict[str, str]:
        """Returns the present ids by name. Blocks. Raises `RetryableError` without an answer."""
        self._asked, asked = {}, self._ask(set(topics))  # not a reply to an older request
        for name, future in asked.items():
            error = future.exception()
            if isinstance(error, KafkaException) and error.args[0].code() not in UNSEEN:
                raise RetryableError(f"no broker describes topic {name}: {error.args[0].str()}")
        return self._ids(asked)

    def positions(self, found: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Returns committed positions with the ids of their topics; raises as `now`.

        Nothing is committed where a position is of another topic of that name.
        """
        ids = self.now(at.topic for at in found)
        positions = {}
        for at, was in found.items():
            text = in_topic(was.metadata, ids.get(at.topic))
            none = Position(None, in_topic("", ids.get(at.topic)) or "")
            positions[at] = none if text is None else was._replace(metadata=text)
        return positions

    def forget(self, gone: Collection[TopicPartition]) -> None:
        """These partitions are read no more."""
        self.begun = {at: topic_id for at, topic_id in self.begun.items() if at not in gone}

    def made_again(self) -> list[TopicPartition]:
        """Returns the partitions of `begun` whose topic has another id now, once for each change.

        Never waits.
        """
        if not self._asked and self.begun and time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + self._every_s
            self._asked = self._ask({at.topic for at in self.begun})
        if not self._asked or not all(future.done() for future in self._asked.values()):
            return []
        now, self._asked = self._ids(self._asked), {}
        again = [at for at, was in self.begun.items() if was and now.get(at.topic, was) != was]
        self.begun |= {at: now[at.topic] for at in again}
        return again

    def _ask(self, topics: set[str]) -> Mapping[str, Future[TopicDescription]]:
        if self._admin is None:
            self._admin = quiet_admin(self._settings)
        asked: Mapping[str, Future[TopicDescription]] = self._admin.describe_topics(
            TopicCollection([self._settings.broker_topic(each) for each in topics]),
            request_timeout=self._settings.request_timeout_ms / 1_000,
        )
        return asked

    def _ids(self, asked: Mapping[str, Future[TopicDescription]]) -> dict[str, str]:
        told = {name: future for name, future in asked.items() if future.exception() is None}
        ids = {
            self._settings.logical_topic(name): str(future.result().topic_id)
            for name, future in told.items()
        }
        return {name: topic_id for name, topic_id in ids.items() if topic_id != NO_ID}
