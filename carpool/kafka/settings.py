"""The section `kafka`: where the brokers are, how topics are made, how the loop reads and commits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from carpool.settings import Secret, Settings
from schemas.topics import MESSAGE_BYTES_MAX

PROTOCOL_OVERHEAD_BYTES = 64 * 1024
METADATA_BYTES_MAX = 4_095
"""What brokers take as commit metadata (`offset.metadata.max.bytes` is 4096, and 4,096 bytes are refused)."""


class KafkaSettings(Settings, frozen=True, kw_only=True):
    """How to reach the brokers and how to behave towards them."""

    bootstrap: Annotated[str, Meta(description="Brokers to begin with: host:port, comma-separated.")] = "127.0.0.1:9092"
    group_prefix: Annotated[str, Meta(min_length=1, description="Consumer groups are named PREFIX-SERVICE.")] = (
        "carpool"
    )
    delivery: Annotated[
        Literal["at_least_once"],
        Meta(
            description="How results commit. This build has at_least_once, with stable record ids; exactly-once comes next."
        ),
    ] = "at_least_once"
    partitions: Annotated[
        int,
        Meta(
            ge=1, le=1_000, description="Partitions of the keyed topics when they are made; bounds instances a service."
        ),
    ] = 4
    lanes: Annotated[int, Meta(ge=1, le=1, description="Partitions of the groups' topic. This build has one lane.")] = 1
    replication_factor: Annotated[
        int, Meta(ge=0, le=9, description="Copies of each topic; 0: three, or as many as there are brokers.")
    ] = 0
    commit_interval_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Least time between commits. Low: more requests; high: more repeats after a crash.",
        ),
    ] = 50
    fetch_wait_ms: Annotated[
        int,
        Meta(
            ge=1, le=5_000, description="How long a broker may hold an empty fetch. Low: more requests; high: latency."
        ),
    ] = 10
    session_timeout_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=300_000,
            description="Silence after which a member is taken for dead. Low: stalls cost a rebalance.",
        ),
    ] = 6_000
    prefetch_kib: Annotated[
        int,
        Meta(ge=1_024, le=1_048_576, description="Memory for records fetched ahead, KiB. Low: waits between fetches."),
    ] = 16_384
    request_timeout_ms: Annotated[
        int,
        Meta(ge=1_000, le=300_000, description="How long administrative calls and look-ups may take before they fail."),
    ] = 10_000
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Meta(description="How to talk to the brokers.")
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[str, Meta(description="SASL mechanism, such as SCRAM-SHA-512; empty: none.")] = ""
    sasl_username: Annotated[str, Meta(description="SASL user name.")] = ""
    sasl_password: Annotated[Secret, Meta(description="SASL password; from the environment only.")] = Secret()
    ssl_ca_location: Annotated[str, Meta(description="File of the certificate authority; empty: the system's.")] = ""

    def check(self) -> list[str]:
        """Returns what is wrong between these values."""
        problems = []
        if self.security_protocol.startswith("SASL") and not (self.sasl_mechanism and self.sasl_username):
            problems.append("security_protocol asks for SASL, but sasl_mechanism or sasl_username is empty")
        if not self.bootstrap.strip():
            problems.append("bootstrap is empty: name at least one broker as host:port")
        return problems

    def group_of(self, service: str) -> str:
        """Returns the consumer group of a service."""
        return f"{self.group_prefix}-{service}"


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """Returns what every librdkafka client needs: brokers and security. Holds the password: never log it."""
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap,
        "security.protocol": settings.security_protocol,
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1_000,
        "allow.auto.create.topics": False,
    }
    optional = {
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": settings.sasl_password.value,
        "ssl.ca.location": settings.ssl_ca_location,
    }
    config.update({name: value for name, value in optional.items() if value})
    return config


def producer_config(settings: KafkaSettings) -> dict[str, Any]:
    """Returns the configuration of a Kafka producer whose records must arrive: idempotent, never timing out by itself."""
    config = client_config(settings)
    del config["allow.auto.create.topics"]
    return config | {
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 1,
        "message.max.bytes": MESSAGE_BYTES_MAX + PROTOCOL_OVERHEAD_BYTES,
        "message.timeout.ms": 0,
        "topic.metadata.refresh.interval.ms": 30_000,
    }


def consumer_config(settings: KafkaSettings, group: str) -> dict[str, Any]:
    """Returns the configuration of a consumer-group member that commits by itself and is told where partitions end."""
    return client_config(settings) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": max(300, settings.session_timeout_ms // 6),
        "fetch.wait.max.ms": settings.fetch_wait_ms,
        "fetch.message.max.bytes": MESSAGE_BYTES_MAX + PROTOCOL_OVERHEAD_BYTES,
        "queued.min.messages": 1_000,
        "queued.max.messages.kbytes": settings.prefetch_kib,
        "enable.partition.eof": True,
    }
