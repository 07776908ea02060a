"""What the brokers know of a service: members, their partitions, waiting records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from carpool.errors import RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.commit_metadata import decode_metadata
from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.settings import KafkaSettings
from cli.status_values import GroupStatus, Member, Partition

PEEK_S = 3.0
Place = tuple[str, int]


class Brokers:
    """Asks the brokers of `settings`. Every call blocks for up to its request time-out, and raises
    `RetryableError`.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1_000
        # What fails is raised; librdkafka's own log lines would only bury it.
        self._config = client_config(settings) | {"log_level": 0}
        self._admin = AdminClient(self._config)

    def groups(self, reads: Mapping[str, Iterable[str]], *, look_s: float) -> list[GroupStatus]:
        """Returns each consumer group of `reads`, which names the topics that it reads.

        Looks twice, `look_s` apart, where records wait: a partition whose offset changed has moved.
        """
        described = self._describe(list(reads))
        places = {group: self._places(topics) for group, topics in reads.items()}
        before = {group: self._committed(group, places[group]) for group in reads}
        waiting = {group: self._waiting(before[group]) for group in reads}
        if any(count for counts in waiting.values() for count, _ in counts.values()):
            time.sleep(look_s)
        return [
            _status(
                group,
                *described[group],
                waiting[group],
                before[group],
                self._committed(group, places[group]),
            )
            for group in reads
        ]

    def _describe(self, groups: list[str]) -> dict[str, tuple[str, list[Member]]]:
        found: dict[str, tuple[str, list[Member]]] = {}
        for group, future in self._admin.describe_consumer_groups(
            groups, request_timeout=self._timeout_s
        ).items():
            try:
                description = _result(future)
            except _MissingError:
                found[group] = ("DEAD", [])
                continue
            members = [_member(raw) for raw in description.members]
            found[group] = (description.state.name, sorted(members, key=lambda member: member.name))
        return found

    def _places(self, topics: Iterable[str]) -> list[Place]:
        try:
            metadata = self._admin.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            raise _unreachable(error) from error
        return [
            (name, number)
            for name in topics
            if name in metadata.topics
            for number in metadata.topics[name].partitions
        ]

    def _committed(self, group: str, places: list[Place]) -> dict[Place, tuple[int, str]]:
        """Returns offset and metadata by partition; offset -1 where nothing was committed."""
        if not places:
            return {}
        try:
            raws = committed_so_far(
                self._settings, group, [TopicPartition(*place) for place in places]
            )
        except KafkaException as error:
            raise _unreachable(error) from error
        return {
            (raw.topic, raw.partition): (max(-1, raw.offset), raw.metadata or "") for raw in raws
        }

    def _waiting(
        self, committed: dict[Place, tuple[int, str]]
    ) -> dict[Place, tuple[int, float | None]]:
        """Returns the waiting records of each partition and the age of the first one in seconds."""
        if not committed:
            return {}
        spec = {TopicPartition(*place): OffsetSpec.latest() for place in committed}
        futures = self._admin.list_offsets(
            spec, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout_s
        )
        ends = {
            (raw.topic, raw.partition): _result(future).offset for raw, future in futures.items()
        }
        unsure = {
            place: offset
            for place, (offset, _) in committed.items()
            if ends[place] > max(0, offset)
        }
        firsts = self._first_records(unsure)
        found: dict[Place, tuple[int, float | None]] = dict.fromkeys(committed, (0, None))
        for place, offset in unsure.items():
            first = firsts.get(place)
            if first is None:
                found[place] = (ends[place] - max(0, offset), None)
            elif first[0] is not None:
                done, _ = decode_metadata(max(0, offset), committed[place][1])
                found[place] = (max(0, ends[place] - first[0] - len(done)), first[1])
        return found

    def _first_records(
        self, offsets: dict[Place, int]
    ) -> dict[Place, tuple[int | None, float | None]]:
        """The offset of the first record at or after each of `offsets`, and its age in seconds.
        (None, None): there is none, only the end. Partitions that do not answer in time are left
        out.
        """
        if not offsets:
            return {}
        consumer = Consumer(
            self._config
            | {
                "group.id": "carpool-status",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": 1_024,
            }
        )
        found: dict[Place, tuple[int | None, float | None]] = {}
        try:
            consumer.assign(
                [
                    TopicPartition(*at, offset if offset >= 0 else OFFSET_BEGINNING)
                    for at, offset in offsets.items()
                ]
            )
            until = time.monotonic() + PEEK_S
            while len(found) < len(offsets) and time.monotonic() < until:
                for message in consumer.consume(100, 0.1):
                    place = (message.topic() or "", message.partition() or 0)
                    error = message.error()
                    if error is None:
                        written_ms = message.timestamp()[1]
                        age_s = (
                            max(0.0, time.time() - written_ms / 1_000) if written_ms > 0 else None
                        )
                        found.setdefault(place, (message.offset(), age_s))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        found.setdefault(place, (None, None))
        except KafkaException as error:
            raise _unreachable(error) from error
        finally:
            consumer.close()
        return found


def _status(
    group: str,
    state: str,
    members: list[Member],
    waiting: dict[Place, tuple[int, float | None]],
    before: dict[Place, tuple[int, str]],
    after: dict[Place, tuple[int, str]],
) -> GroupStatus:
    owners = {tuple(place): member.name for member in members for place in member.partitions}
    partitions = [
        Partition(
            topic=place[0],
            number=place[1],
            waiting=count,
            oldest_s=oldest_s,
            member=owners.get(place),
            has_moved=count == 0 or after.get(place) != before.get(place),
        )
        for place, (count, oldest_s) in sorted(waiting.items())
    ]
    return GroupStatus(name=group, state=state, members=members, partitions=partitions)


def _member(raw: Any) -> Member:
    """Returns a member by its client id where that is set, else by its address."""
    host = (raw.host or "").lstrip("/")
    named = raw.client_id if raw.client_id and raw.client_id != "rdkafka" else host
    places = (
        [(at.topic, at.partition) for at in raw.assignment.topic_partitions]
        if raw.assignment
        else []
    )
    return Member(name=named or raw.member_id, host=host, partitions=sorted(places))


class _MissingError(Exception):
    """The group does not exist."""


def _result(future: Future[Any]) -> Any:
    try:
        return reply(future)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            raise _MissingError from error
        raise _unreachable(error) from error


def _unreachable(error: KafkaException) -> RetryableError:
    return RetryableError(
        f"the brokers do not tell how the consumer groups are: {error.args[0].str()}"
    )
