"""Converts errors, offsets and log lines from and to librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from carpool.errors import CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import BrokerSettings

log = structlog.get_logger()

LEFT_BEHIND = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)
"""Commit errors of a member that its group removed. `STALE_MEMBER_EPOCH` is not one of them: the
next heartbeat brings the epoch.
"""

RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "a topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id",
}
"""Errors of missing rights, with what they are about."""

REFUSED = frozenset(
    {
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        *RIGHTS,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Errors of a wrong deployment. A partition that is not in the metadata is read a little later."""
REFUSED_RECORDS = REFUSED | {KafkaError._UNKNOWN_PARTITION}
"""Those of a record that is written: its topic lacks the partition until somebody adds it."""


def sort_error(
    error: KafkaError, topic: str = "", refused: frozenset[int] = REFUSED
) -> CarpoolError:
    """Sorts the error of a call or a delivery outside transactions."""
    code, where = error.code(), f" ({topic})" if topic else ""
    if code in RIGHTS:
        return DeploymentError(
            f"Kafka refuses a right on {RIGHTS[code]}{where}: {error.str()}; allow what `carpool "
            "acls` prints for this service"
        )
    if code in refused:
        return DeploymentError(
            f"the broker refuses what it is given{where}: {error.str()}; check topics and brokers "
            "with `carpool topics check`"
        )
    if code in LEFT_BEHIND or code == KafkaError._FATAL or error.fatal():
        return FencedError(f"the broker has fenced or removed this client{where}: {error.str()}")
    return RetryableError(f"the broker did not take it{where}: {error.str()} ({error.name()})")


def fatal_cause(error: KafkaException | SystemError) -> KafkaError:
    """Returns the librdkafka error of a failed call; raises `error` itself if there is none.

    confluent-kafka calls delivery callbacks while it raises a fatal error, so that error may be the
    cause of a `SystemError`.
    """
    found: BaseException | None = error
    while isinstance(found, SystemError):
        found = found.__cause__
    if not isinstance(found, KafkaException):
        raise error
    raised: KafkaError = found.args[0]
    return raised


def raw_offsets(
    settings: BrokerSettings, offsets: Mapping[TopicPartition, Position]
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
