"""Converts errors, offsets and log lines from and to librdkafka, and sorts error codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from carpool.errors import CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

log = structlog.get_logger()


Kind = Literal["passes", "refused", "right", "setting", "absent", "removed", "forgotten"]
"""`passes`: a state of the world, which ends by itself: the call is made again. `refused`, `right`
and `setting` are faults of the deployment, which last until somebody mends them: the brokers refuse
what they are given, this client lacks a right, or a setting is wrong.

`absent`: the metadata lacks a partition. It is read a little later, and a record for it is refused,
because nobody may ever add it. `removed`: the group removed this member, which joins again.
`forgotten`: the brokers forgot an idle producer (`transactional.id.expiration.ms`, 7 days); only a
new one can begin a transaction.

A code without a kind passes; in a transaction, it aborts the transaction. `STALE_MEMBER_EPOCH` is
such a code: the next heartbeat brings the epoch, and the next transaction has it.
"""

_CODES: dict[Kind, str] = {
    "passes": "_TIMED_OUT _TIMED_OUT_QUEUE REQUEST_TIMED_OUT UNSTABLE_OFFSET_COMMIT "
    "NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS",
    "refused": "UNSUPPORTED_VERSION _UNSUPPORTED_FEATURE MSG_SIZE_TOO_LARGE UNKNOWN_TOPIC_OR_PART "
    "_UNKNOWN_TOPIC INVALID_TRANSACTION_TIMEOUT INVALID_RECORD POLICY_VIOLATION",
    "right": "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "setting": "_INVALID_ARG _NOT_CONFIGURED _NOT_IMPLEMENTED _AUTHENTICATION "
    "SASL_AUTHENTICATION_FAILED",
    "absent": "_UNKNOWN_PARTITION",
    "removed": "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH",
    "forgotten": "INVALID_PRODUCER_ID_MAPPING UNKNOWN_PRODUCER_ID",
}
KINDS: dict[int, Kind] = {
    getattr(KafkaError, name): kind for kind, names in _CODES.items() for name in names.split()
}
FAULTS: tuple[Kind, ...] = ("refused", "right", "setting")


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
