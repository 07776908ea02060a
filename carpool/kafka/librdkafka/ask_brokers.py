"""Asks the brokers for settings, for rights on topics, and for where a group is.

`reply` takes replies to an `AdminClient` so that the client is never destroyed on its own thread.
librdkafka would abort the process. It delivers a reply on a thread of the client, and that thread
drops the future last. So a future must not reference the client: neither by a callback of an object
that has the client, nor by an exception raised in a frame where the client is a variable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from carpool.errors import ConfigError, DeploymentError, RetryableError
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.librdkafka.convert import KINDS, sort_error
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import Standing, missing_records

T = TypeVar("T")


def reply(future: Future[T]) -> T:
    """Returns the result of a future. Blocks. Raises `KafkaException`, whose text is not empty."""
    error = future.exception()
    if isinstance(error, KafkaException):
        # A new exception: the traceback of the old one references frames with the client.
        found: KafkaError = error.args[0]
        text = found.str().rstrip(": ")
        if text != found.str():  # brokers may send a code without words
            found = KafkaError(found.code(), f"{text}: {KafkaError(found.code()).str()}")
        raise KafkaException(found)
    return future.result()


def topic_rights(
    admin: AdminClient, names: Iterable[str], timeout_s: float
) -> dict[str, frozenset[str]]:
    """Returns the operations on each of these topics that exists: names as in `kafka.acls`. Blocks.

    None at all: the credentials may not describe the topic, which metadata does not list then.
    Raises `RetryableError` when no broker answers.
    """
    wanted = list(names)
    if not wanted:
        return {}
    found = {}
    futures = admin.describe_topics(
        TopicCollection(wanted), include_authorized_operations=True, request_timeout=timeout_s
    )
    for name, future in futures.items():
        try:
            allowed = reply(future).authorized_operations
            found[name] = frozenset(each.name for each in allowed or ())
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = frozenset()
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise sort_error(error.args[0], f"Describe on topic {name}") from error
    return found


def broker_config(
    admin: AdminClient, broker_ids: Iterable[int], timeout_s: float
) -> dict[str, str] | None:
    """Returns the settings of the first broker that answers; None: not permitted. Blocks.

    Each broker has `timeout_s`. Raises `RetryableError` when none answers.
    """
    silent = RetryableError("the brokers know of no broker yet; is the cluster starting?")
    for broker_id in sorted(broker_ids):
        try:
            return settings_of(
                admin, [ConfigResource(ResourceType.BROKER, str(broker_id))], timeout_s
            ).get(str(broker_id))
        except RetryableError as error:
            silent = error
    raise silent


def settings_of(
    admin: AdminClient, resources: list[ConfigResource], timeout_s: float
) -> dict[str, dict[str, str]]:
    """Returns the settings of topics or of one broker by name, without those we may not read.

    Raises `RetryableError` without an answer.
    """
    found: dict[str, dict[str, str]] = {}
    if not resources:
        return found
    for resource, future in admin.describe_configs(resources, request_timeout=timeout_s).items():
        try:
            entries = reply(future)
        except KafkaException as error:
            kind = resource.restype.name.lower()
            failed = sort_error(error.args[0], f"DescribeConfigs on {kind} {resource.name}")
            if isinstance(failed, DeploymentError):
                continue
            raise failed from error
        found[resource.name] = {
            name: entry.value for name, entry in entries.items() if entry.value is not None
        }
    return found


def standings(
    admin: AdminClient, settings: KafkaSettings, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Standing]:
    """Returns the group's standing; empty where the brokers do not support such requests.

    `partitions` name topics as the brokers do. Raises `RetryableError` for what passes.
    """
    timeout_s = settings.request_timeout_ms / 1_000
    places = [TopicPartition(settings.logical_topic(at.topic), at.partition) for at in partitions]
    try:
        committed = committed_so_far(settings, group, places).values()
        first, end, records = (
            _offsets(admin, dict.fromkeys(partitions, spec), timeout_s)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.for_timestamp(0))
        )
    except KafkaException as error:
        if KINDS.get(error.args[0].code()) == "passes":
            failed = sort_error(error.args[0], f"Read on group {group}")
            raise RetryableError(
                f'{failed}. Without this right librdkafka says "timed out": allow what '
                "`carpool acls` prints"
            ) from error
        return {}
    by_place = {TopicPartition(each.topic, each.partition): each for each in committed}
    return {
        at: Standing(
            committed=max(-1, by_place[at].offset),
            metadata=by_place[at].metadata or "",
            first=first[at].offset,
            first_ms=max(0, records[at].timestamp),
            end=end[at].offset,
        )
        for at in partitions
    }


def _offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, Any], timeout_s: float
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    request = {RawPartition(at.topic, at.partition): spec for at, spec in wanted.items()}
    futures = admin.list_offsets(request, request_timeout=timeout_s)
    return {
        TopicPartition(raw.topic, raw.partition): reply(future) for raw, future in futures.items()
    }


def missing_of(settings: KafkaSettings, group: str, at: TopicPartition) -> str:
    """Returns what a group misses in a partition, in words; empty: nothing, or nobody says.

    `at` names the topic as the brokers do. Blocks.
    """
    with suppress(RetryableError):
        if found := standings(quiet_admin(settings), settings, group, [at]):
            return "".join(missing_records(at, found[at]))
    return ""


def brokers_with(
    admin: AdminClient, settings: KafkaSettings, topics: Iterable[str]
) -> Collection[int]:
    """Returns the ids of the brokers. Blocks. Raises `ConfigError` when a topic is missing."""
    brokers: Collection[int] = ()
    for wanted in map(settings.broker_topic, topics):
        timeout_s = settings.request_timeout_ms / 1_000
        metadata = cluster_metadata(admin, settings, timeout_s, wanted)
        error, brokers = metadata.topics[wanted].error, metadata.brokers
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            where = f"topic {wanted} at {settings.bootstrap}"
            raise ConfigError(f"{where}: {error.str()}; run `carpool topics create`")
        if error is not None:
            raise sort_error(error, f"Describe on topic {wanted}")
    return brokers
