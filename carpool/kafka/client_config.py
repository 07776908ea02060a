"""The configuration of librdkafka clients."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from carpool.errors import ConfigError
from carpool.kafka.passed_through import flattened, refusals
from carpool.kafka.settings import KafkaSettings
from schemas.topics import MESSAGE_BYTES_MAX

RETRY_BACKOFF_MS = 10
"""Pause before a request is retried: a transaction waits so long for the markers of the last."""
FETCH_WAIT_MS = 500
"""How long a broker waits for records before it answers a fetch; a new record ends the wait."""
EMBEDDED_FETCH_WAIT_MS = 10
"""The same for the embedded broker, where a new record does not end the wait."""
SESSION_TIMEOUT_MS = 6_000
"""Time without a heartbeat after which a member of the classic protocol is taken for dead."""
POLL_INTERVAL_MS = 60_000
"""Time without a poll after which a member leaves, and the brokers' limit for a revocation.

librdkafka's default is five minutes.
"""
MEMBER_ONLY = ("group.protocol", "session.timeout.ms")
"""Of `[kafka.librdkafka]`, what only the members of a group get: other clients may refuse it."""
PROTOCOL_OVERHEAD_BYTES = 64 * 1024
FETCH_PARTITION_BYTES = 256 * 1024
"""Bytes of one partition in one fetch response; a larger record comes alone."""
FETCHED_AHEAD_RECORDS = 250
FETCHED_AHEAD_KIB = 16_384
FETCH_BACKOFF_MS = 5
"""Pause of fetching when librdkafka's queue is full; its default is a second.

The queue counts the records of all partitions, so records of one class would delay the other class.
"""
METADATA_REFRESH_MS = 30_000
"""Maximum age of topic metadata; librdkafka's default is five minutes.

A broker that is starting may return too few partitions, which clients use until the next refresh.
"""
READING = {
    "fetch.max.bytes": 2 * MESSAGE_BYTES_MAX,
    "receive.message.max.bytes": 4 * MESSAGE_BYTES_MAX,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": FETCH_WAIT_MS,
    "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
    "queued.max.messages.kbytes": FETCHED_AHEAD_KIB,
    "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS,
}
"""Of every consumer. A response with a record of the largest size exceeds `fetch.max.bytes`.

librdkafka refuses to unpack a zstd batch to more than `receive.message.max.bytes`, whose default is
100 MB. It unpacks gzip, lz4 and snappy to any size.
"""


def security_config(settings: KafkaSettings) -> dict[str, Any]:
    """Returns brokers, security and `[kafka.librdkafka]`. Contains secrets: never log it.

    Raises `ConfigError` for a setting that may not be given.
    """
    if problems := list(refusals(settings.librdkafka)):
        raise ConfigError("the settings of [kafka] do not fit: " + "; ".join(problems))
    given = flattened(settings.librdkafka)
    store = "keystore" if "ssl.keystore.location" in given else "key"
    optional = {
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": settings.sasl_password.value,
        "sasl.oauthbearer.client.secret": settings.oauthbearer_client_secret.value,
        "ssl.ca.location": settings.ssl_ca_location,
        f"ssl.{store}.password": settings.ssl_key_password.value,
    }
    return {
        "bootstrap.servers": settings.bootstrap,
        "security.protocol": settings.security_protocol,
        **{name: value for name, value in optional.items() if value},
        **given,
    }


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """Returns the configuration of every client. Contains secrets: never log it.

    Raises `ConfigError` with the message of librdkafka when it refuses the settings.
    """
    security = security_config(settings)
    _try(security)
    return {
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1_000,
        "allow.auto.create.topics": False,
    } | {name: value for name, value in security.items() if name not in MEMBER_ONLY}


def _try(config: dict[str, Any]) -> None:
    """Makes a client that does not connect, because librdkafka checks nothing before."""
    try:
        AdminClient(config | {"bootstrap.servers": "", "log_level": 0})
    except KafkaException as error:
        raise ConfigError(
            f"librdkafka refuses the settings of [kafka]: {error.args[0].str()}; change "
            "[kafka.librdkafka] or the security settings of [kafka], or set the secret "
            "CARPOOL_KAFKA_SASL_PASSWORD, CARPOOL_KAFKA_SSL_KEY_PASSWORD or "
            "CARPOOL_KAFKA_OAUTHBEARER_CLIENT_SECRET"
        ) from None


def producer_config(settings: KafkaSettings) -> dict[str, Any]:
    """Returns the configuration of an idempotent producer without a message time-out."""
    config, given = client_config(settings), flattened(settings.librdkafka)
    del config["allow.auto.create.topics"]
    return config | {
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 1,
        "retry.backoff.ms": RETRY_BACKOFF_MS,
        "message.max.bytes": MESSAGE_BYTES_MAX + PROTOCOL_OVERHEAD_BYTES,
        "message.timeout.ms": 0,
        "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS,
        **{name: value for name, value in given.items() if name not in MEMBER_ONLY},
    }


def consumer_config(settings: KafkaSettings, group: str) -> dict[str, Any]:
    """Returns the configuration of a group member that commits and sees partition ends."""
    given = flattened(settings.librdkafka)
    session_ms = int(given.get("session.timeout.ms", SESSION_TIMEOUT_MS))
    return (
        client_config(settings)
        | READING
        | {
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": max(300, session_ms // 6),
            "max.poll.interval.ms": max(POLL_INTERVAL_MS, session_ms),
            "fetch.message.max.bytes": FETCH_PARTITION_BYTES,
            "queued.min.messages": FETCHED_AHEAD_RECORDS,
            **given,
        }
    )


def reader_config(settings: KafkaSettings, name: str) -> dict[str, Any]:
    """Returns the configuration of a consumer that joins no group, and reads what is committed.

    `name` is for the brokers' logs. librdkafka needs a group. It logs nothing: failures are raised.
    """
    return client_config(settings) | READING | {"group.id": settings.group_of(name), "log_level": 0}
