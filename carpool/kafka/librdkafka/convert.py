"""Converts errors, offsets and log lines from and to librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from carpool.errors import CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.librdkafka.error_kinds import KINDS
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

log = structlog.get_logger()


def sort_error(error: KafkaError, needed: str = "", *, is_record: bool = False) -> CarpoolError:
    """Sorts the error of a call or a delivery outside transactions.

    `needed`: the right that the call needs, such as `Write on topic T`, or nothing. `is_record`: a
    record was not written.
    """
    kind, where = KINDS.get(error.code()), f" ({needed})" if needed else ""
    if kind == "right":
        return DeploymentError(
            f"Kafka refuses a right{where}: {error.str()}; allow what `carpool acls` prints for "
            "this service"
        )
    if kind == "setting":
        return DeploymentError(f"Kafka refuses these settings{where}: {error.str()}; check [kafka]")
    if kind == "refused" or (kind == "absent" and is_record):
        return DeploymentError(
            f"the broker refuses what it is given{where}: {error.str()}; check topics and brokers "
            "with `carpool topics check`"
        )
    if kind == "removed" or error.code() == KafkaError._FATAL or error.fatal():
        return FencedError(f"the broker has fenced or removed this client{where}: {error.str()}")
    return RetryableError(f"the broker did not take it{where}: {error.str()} ({error.name()})")


def fatal_cause(error: KafkaException | SystemError) -> KafkaError:
    """Returns the librdkafka error of a failed call; raises `error` itself if it has another cause.

    confluent-kafka calls callbacks while it raises a fatal error. So that error may be the cause of
    a `SystemError`; a second error in the same call leaves one without a cause.
    """
    found: BaseException | None = error
    while isinstance(found, SystemError):
        found = found.__cause__
    if found is None:
        return KafkaError(KafkaError._FATAL, str(error), fatal=True)
    if not isinstance(found, KafkaException):
        raise error
    raised: KafkaError = found.args[0]
    return raised


def raw_offsets(
    settings: KafkaSettings, offsets: Mapping[TopicPartition, Position]
) -> list[RawPartition]:
    """Returns positions as librdkafka commits them."""
    return [
        RawPartition(
            settings.broker_topic(at.topic),
            at.partition,
            -1 if position.offset is None else position.offset,
            position.metadata,
        )
        for at, position in offsets.items()
    ]


class StructlogBridge:
    """Receives log lines of librdkafka; confluent-kafka calls `log(level, format, *args)`."""

    def log(self, level: int, message: str, *args: Any) -> None:
        """Logs a line of librdkafka."""
        log.debug("librdkafka", level=level, message=message % args if args else message)
