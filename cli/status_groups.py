"""Asks the brokers for the consumer groups: members, their partitions, waiting records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from carpool.clock import SystemClock
from carpool.errors import DeploymentError, RetryableError
from carpool.kafka.cluster import cluster_metadata, quiet_admin, told
from carpool.kafka.commit_metadata import decode_metadata
from carpool.kafka.librdkafka.ask_brokers import reply
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import END_WAIT_MS, TopicReader
from cli.status_verdict import GroupStatus, Member, Partition

PEEK_S = 3.0


class Brokers:
    """Asks the brokers of `settings`. Every call blocks for up to its request time-out, and raises
    `RetryableError`.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._admin = quiet_admin(settings)

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
        found = []
        for group in reads:
            state, members = described[group]
            owners = {tuple(at): each.name for each in members for at in each.partitions}
            after = self._committed(group, places[group])
            partitions = [
                Partition(
                    topic=at.topic,
                    number=at.partition,
                    waiting=count,
                    oldest_s=oldest_s,
                    member=owners.get(at),
                    has_moved=count == 0 or after.get(at) != before[group].get(at),
                )
                for at, (count, oldest_s) in sorted(waiting[group].items())
            ]
            found.append(
                GroupStatus(name=group, state=state, members=members, partitions=partitions)
            )
        return found

    def _describe(self, groups: list[str]) -> dict[str, tuple[str, list[Member]]]:
        found: dict[str, tuple[str, list[Member]]] = {}
        for group, future in self._admin.describe_consumer_groups(
            groups, request_timeout=self._timeout_s
        ).items():
            try:
                description = reply(future)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise _unreachable(error, f"Describe on group {group}") from error
                found[group] = ("DEAD", [])
                continue
            members = [_member(self._settings, raw) for raw in description.members]
            found[group] = (description.state.name, sorted(members, key=lambda member: member.name))
        return found

    def _places(self, topics: Iterable[str]) -> list[TopicPartition]:
        metadata = cluster_metadata(self._admin, self._settings, self._timeout_s)
        found = {name: metadata.topics.get(self._settings.broker_topic(name)) for name in topics}
        return [
            TopicPartition(name, number)
            for name, topic in found.items()
            if topic is not None
            for number in topic.partitions
        ]

    def _committed(
        self, group: str, places: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Returns offset and metadata by partition; offset -1 where nothing was committed."""
        if not places:
            return {}
        try:
            found = committed_so_far(self._settings, group, places)
        except KafkaException as error:
            raise _unreachable(error, f"Read on group {group} and on its topics") from error
        return {at: (max(-1, raw.offset), raw.metadata or "") for at, raw in found.items()}

    def _waiting(
        self, committed: dict[TopicPartition, tuple[int, str]]
    ) -> dict[TopicPartition, tuple[int, float | None]]:
        """Returns the waiting records of each partition and the age of the first one in seconds."""
        if not committed:
            return {}
        spec = {raw_partition(self._settings, at): OffsetSpec.latest() for at in committed}
        futures = self._admin.list_offsets(
            spec, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout_s
        )
        try:
            ends = {
                place_of(self._settings, raw): reply(future).offset
                for raw, future in futures.items()
            }
        except KafkaException as error:
            topics = ", ".join(sorted({self._settings.broker_topic(at.topic) for at in committed}))
            raise _unreachable(error, f"Describe on {topics}") from error
        unsure = {
            place: offset
            for place, (offset, _) in committed.items()
            if ends[place] > max(0, offset)
        }
        firsts = self._first_records(unsure)
        found: dict[TopicPartition, tuple[int, float | None]] = dict.fromkeys(committed, (0, None))
        for place, offset in unsure.items():
            first = firsts.get(place)
            if first is None:
                found[place] = (ends[place] - max(0, offset), None)
            elif first[0] is not None:
                done = _completed(offset, committed[place][1])
                found[place] = (max(0, ends[place] - first[0] - done), first[1])
        return found

    def _first_records(
        self, offsets: dict[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, float | None]]:
        """The offset of the first record at or after each of `offsets`, and its age in seconds.
        (None, None): there is none, only the end. Partitions that do not answer in time are left
        out.
        """
        if not offsets:
            return {}
        config = {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": END_WAIT_MS,
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1_024,
        }
        clock = SystemClock()
        found: dict[TopicPartition, tuple[int | None, float | None]] = {}
        with TopicReader(self._settings, clock, name="status", config=config) as reader:
            reader.add(
                {at: offset if offset >= 0 else OFFSET_BEGINNING for at, offset in offsets.items()}
            )
            until = time.monotonic() + PEEK_S
            while len(found) < len(offsets) and time.monotonic() < until:
                batch = reader.poll(100, 0.1)
                for message in batch.messages:
                    at, written_ms = message.source, message.source.timestamp_ms
                    age_s = max(0.0, clock.now_us() / 1e6 - written_ms / 1_000)
                    found.setdefault(
                        TopicPartition(at.topic, at.partition),
                        (at.offset, age_s if written_ms > 0 else None),
                    )
                for end in batch.ends:
                    found.setdefault(end, (None, None))
        return found


def _completed(offset: int, metadata: str) -> int:
    """Returns how many offsets after the committed one are complete; 0 if nobody can tell."""
    try:
        return len(decode_metadata(max(0, offset), metadata).whole)
    except DeploymentError:
        return 0


def _member(settings: KafkaSettings, raw: Any) -> Member:
    """Returns a member by its client id where that is set, else by its address."""
    host = (raw.host or "").lstrip("/")
    named = raw.client_id if raw.client_id and raw.client_id != "rdkafka" else host
    places = (
        [place_of(settings, at) for at in raw.assignment.topic_partitions] if raw.assignment else []
    )
    return Member(name=named or raw.member_id, host=host, partitions=sorted(places))


def _unreachable(error: KafkaException, right: str) -> RetryableError:
    why = told(error.args[0], right)
    return RetryableError(f"the brokers do not describe the consumer groups: {why}")
