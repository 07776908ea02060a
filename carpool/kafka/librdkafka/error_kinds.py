"""The error codes of Kafka by what they mean: a state of the world, or a fault of the deployment.

A state of the world passes by itself: the call is made again. A fault of the deployment lasts
until somebody mends it: the service is not ready, and tries again after a growing pause.
"""

from __future__ import annotations

from typing import Literal

from confluent_kafka import KafkaError

Kind = Literal["passes", "refused", "right", "setting", "absent", "removed", "forgotten"]
"""`passes`: a state of the world. `refused`, `right` and `setting` are faults of the deployment:
the brokers refuse what they are given, this client lacks a right, or a setting is wrong.

`absent`: the metadata lacks a partition. It is read a little later, and a record for it is refused,
because nobody may ever add it. `removed`: the group removed this member, which joins again.
`forgotten`: the brokers forgot an idle producer (`transactional.id.expiration.ms`, 7 days); only a
new one can begin a transaction.

A code without a kind passes; in a transaction, it aborts the transaction. `STALE_MEMBER_EPOCH` is
such a code: the next heartbeat brings the epoch, and the next transaction has it.
"""

_CODES: dict[Kind, tuple[int, ...]] = {
    "passes": (
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ),
    "refused": (
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    ),
    "right": (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "setting": (
        KafkaError._INVALID_ARG,
        KafkaError._NOT_CONFIGURED,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    ),
    "absent": (KafkaError._UNKNOWN_PARTITION,),
    "removed": (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
    ),
    "forgotten": (KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID),
}
KINDS: dict[int, Kind] = {code: kind for kind, codes in _CODES.items() for code in codes}
FAULTS: tuple[Kind, ...] = ("refused", "right", "setting")
